"""Whether a pod's node has fallen silent, as the pod alone tells. Pure.

The controller of nodes writes into a pod of such a node that it is not ready, and nothing else:
what its kubelet said last of the containers stays, that they are. A kubelet that reports keeps the
two alike. So the cause is known without a right to read nodes. Called by observe.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atom_operator.domain import Manifest, SilentPod
from atom_operator.pods.pod_state import time_of


def silent_pod(manifest: Manifest) -> SilentPod | None:
    """The pod, where its node reports no more; None of any other."""
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
