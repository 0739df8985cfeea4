"""Lookup terms of other AtomDeployments' objects: those of a route, and of a workload. Pure.

Two routes collide, and two sets of pods ask for one claim or one port of a node, exactly if they
have a term in common. So a reconcile reads the objects that share one, and never all objects of a
cluster. The cache stores the terms; both sides of a comparison are made here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from atom_operator.domain.objects import Manifest
from atom_operator.domain.resources import host_ports

Match = tuple[str, tuple[tuple[str, str], ...]]  # a path's prefix, and headers


def terms_of(manifest: Manifest) -> tuple[str, ...]:
    """Return the lookup terms of a stored object; empty for a kind that is never looked up by
    them."""
    spec = manifest.get("spec")
    if not isinstance(spec, Mapping):
        return ()
    if "parentRefs" in spec:
        return tuple(dict.fromkeys(route_terms(manifest)))
    group = spec.get("leaderWorkerTemplate")
    template = group.get("leaderTemplate") if isinstance(group, Mapping) else spec.get("template")
    pod_spec = template.get("spec") if isinstance(template, Mapping) else None
    if not isinstance(pod_spec, Mapping):
        return ()
    namespace = manifest["metadata"].get("namespace", "")
    return tuple(dict.fromkeys((*claim_terms(namespace, pod_spec), *port_terms(pod_spec))))


def claim_term(namespace: str, claim: str) -> str:
    """Return the term of workloads that mount a claim."""
    return f"claim {namespace}/{claim}"


def claim_terms(namespace: str, pod_spec: Mapping[str, Any]) -> Iterator[str]:
    """Yield a term for each claim that pods of this spec share."""
    for volume in pod_spec.get("volumes") or ():
        source = volume.get("persistentVolumeClaim") if isinstance(volume, Mapping) else None
        if isinstance(source, Mapping) and source.get("claimName"):
            yield claim_term(namespace, str(source["claimName"]))


def port_terms(pod_spec: Mapping[str, Any]) -> Iterator[str]:
    """Yield a term for each port of its node that a pod of this spec takes."""
    for port in sorted(host_ports(pod_spec)):
        yield f"port {port.number}/{port.protocol}"


def route_terms(route: Manifest) -> Iterator[str]:
    """Yield a term for each Gateway, hostname and match together."""
    hosts = sorted({str(host).lower() for host in route["spec"].get("hostnames") or ()}) or [""]
    matches = sorted(set(route_matches(route)))
    for gateway in route_parents(route):
        for host in hosts:
            for match in matches:
                yield f"route {json.dumps([gateway, host, match])}"


def route_parents(route: Manifest) -> dict[str, set[str]]:
    """Return the listeners by Gateway; an empty name means all."""
    found: dict[str, set[str]] = {}
    for parent in route["spec"].get("parentRefs") or ():
        namespace = parent.get("namespace") or route["metadata"].get("namespace", "")
        gateway = f"{namespace}/{parent.get('name')}"
        found.setdefault(gateway, set()).add(str(parent.get("sectionName") or ""))
    return found


def route_matches(route: Manifest) -> Iterator[Match]:
    """Yield each match of each rule."""
    for rule in route["spec"].get("rules") or ():
        for match in rule.get("matches") or ():
            path: Mapping[str, Any] = match.get("path") or {}
            headers = match.get("headers") or ()
            named = ((str(item.get("name")).lower(), str(item.get("value"))) for item in headers)
            yield str(path.get("value")), tuple(sorted(named))
