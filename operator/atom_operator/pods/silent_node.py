"""Whether a pod's node has fallen silent, judged by the pod alone. Pure.

The controller of nodes marks a pod of such a node as not ready, and changes nothing else: the
kubelet's last report, that its containers are ready, stays. A kubelet that reports keeps the two
alike. So the cause is known without a right to read nodes. Called by observe, the roll-up and the
plug-in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from atom_operator.domain import Manifest, SilentPod
from atom_operator.pods.pod_state import time_of


def silent_pod(manifest: Manifest) -> SilentPod | None:
    """Return the pod if its node reports no more; None of any other."""
    status: Mapping[str, Any] = manifest.get("status") or {}
    told = {item["type"]: item for item in status.get("conditions") or ()}
    spec, ready = manifest.get("spec") or {}, told.get("Ready") or {}
    containers = status.get("containerStatuses") or ()
    gates = [gate["conditionType"] for gate in spec.get("readinessGates") or ()]
    if ready.get("status") != "False" or status.get("phase") != "Running":
        return None
    if not containers or not all(item.get("ready") for item in containers):
        return None
    if any((told.get(gate) or {}).get("status") != "True" for gate in gates):
        return None
    since = time_of(ready.get("lastTransitionTime"))
    return SilentPod(manifest["metadata"]["name"], str(spec.get("nodeName")), since)


def silence_of(node: str, silent: Iterable[SilentPod]) -> str:
    """Return since when a node has been silent, and with which of these pods."""
    pods = [pod for pod in silent if pod.node == node]
    since = min((pod.since for pod in pods if pod.since is not None), default=None)
    when = f" since {since:%Y-%m-%dT%H:%M:%SZ}" if since is not None else ""
    return f"node {node} has not reported{when}, with {', '.join(sorted(p.name for p in pods))}"
