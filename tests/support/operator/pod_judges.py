"""Faults of a pod template that no schema finds: names, mounts, ports and memory that do not agree.

Pure; each judge yields words, none for a sound template.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from atom_operator.api.v1alpha1.common import quantity_bytes

_PROBES = ("startupProbe", "readinessProbe", "livenessProbe")
_SIZES = ("memory", "ephemeral-storage")


def pod_faults(template: Mapping[str, Any]) -> Iterator[str]:
    """Yield the faults of a pod template."""
    pod = template["spec"]
    containers = [*pod["containers"], *pod.get("initContainers", ())]
    volumes = [volume["name"] for volume in pod.get("volumes", ())]
    claims = [
        volume["persistentVolumeClaim"]["claimName"]
        for volume in pod.get("volumes", ())
        if "persistentVolumeClaim" in volume
    ]
    ports = [port for container in containers for port in container.get("ports", ())]
    yield from _twice("volumes", volumes)
    yield from _twice("claims", claims)
    yield from _twice("containers", (container["name"] for container in containers))
    yield from _twice("ports", (port["name"] for port in ports))
    yield from _twice("port numbers", (port["containerPort"] for port in ports))
    mounted = set()
    for container in containers:
        names = {mount["name"] for mount in container.get("volumeMounts", ())}
        mounted |= names
        for name in names.difference(volumes):
            yield f"{container['name']} mounts {name}, which is no volume"
        yield from _container_faults(container)
    for name in set(volumes) - mounted:
        yield f"no container mounts the volume {name}"


def _container_faults(container: Mapping[str, Any]) -> Iterator[str]:
    name = container["name"]
    paths = [mount["mountPath"] for mount in container.get("volumeMounts", ())]
    yield from _twice(f"mounts of {name}", paths)
    yield from _twice(f"variables of {name}", (item["name"] for item in container.get("env", ())))
    resources = container.get("resources", {})
    limits = resources.get("limits", {})
    for resource, asked in resources.get("requests", {}).items():
        limit = limits.get(resource) if resource in _SIZES else None
        if limit is not None and quantity_bytes(asked) > quantity_bytes(limit):
            yield f"{name} requests {asked} of {resource}, more than its limit {limit}"
    own = {port["name"] for port in container.get("ports", ())}
    for probe in _PROBES:
        port = container.get(probe, {}).get("httpGet", {}).get("port")
        if isinstance(port, str) and port not in own:
            yield f"the {probe} of {name} asks the port {port}, which it does not have"


def _twice(what: str, names: Iterable[Any]) -> Iterator[str]:
    for name, count in Counter(names).items():
        if count > 1:
            yield f"{what}: {name} {count} times"
