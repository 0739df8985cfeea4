"""The device manager of kubelets: which pod has which AMD devices, and which of them are sick.

A plugin takes a sick device out of what the node may give away; the pod that has it keeps it, also
when its containers are started again. Only a kubelet with the feature ResourceHealthStatus says in
the pod's status which device that is.
"""

from __future__ import annotations

from atom_operator.domain import POD, Manifest
from tests.support.in_memory_cluster.devices.device_claims import numbers_given
from tests.support.in_memory_cluster.quantities import requests_of
from tests.support.in_memory_cluster.state import ClusterState, is_terminal

RESOURCE = "amd.com/gpu"


def offer_devices(state: ClusterState) -> None:
    """Write what each node may give away, where some of its devices are or were sick."""
    for node in state.api.nodes or []:
        name, status = node["metadata"]["name"], node["status"]
        if RESOURCE not in status["capacity"]:
            continue
        sick = state.sick.get(name)
        key = (name, "sick devices")
        if sick is not None:
            left = int(status["capacity"][RESOURCE]) - len(sick.numbers)
            status["allocatable"][RESOURCE] = str(max(0, left))
            state.notes[key] = True
        elif state.notes.pop(key, None):
            status["allocatable"][RESOURCE] = status["capacity"][RESOURCE]


def devices_of(state: ClusterState, pod: Manifest) -> frozenset[int]:
    """The numbers of a pod's devices on its node, given out at the first look."""
    if pod["spec"].get("resourceClaims"):
        return numbers_given(state, pod)
    count = requests_of(pod["spec"])[RESOURCE] // 1000
    if not count:
        return frozenset()
    found: frozenset[int] | None = state.noted(pod, "devices")
    if found is None:
        found = frozenset(_free(state, pod)[:count])
        state.note(pod, "devices", found)
    return found


def _free(state: ClusterState, pod: Manifest) -> list[int]:
    """Well ones before sick ones, which only a kubelet that was late gives away."""
    node = pod["spec"]["nodeName"]
    taken = {
        number
        for other in state.all(POD)
        if other["spec"].get("nodeName") == node and not is_terminal(other)
        for number in state.noted(other, "devices") or ()
    }
    sick = state.sick[node].numbers if node in state.sick else frozenset()
    (place,) = [item for item in state.api.nodes or [] if item["metadata"]["name"] == node]
    numbers = range(int(place["status"]["capacity"].get(RESOURCE, 0)))
    return sorted((n for n in numbers if n not in taken), key=lambda number: number in sick)


def sick_devices_of(state: ClusterState, pod: Manifest) -> frozenset[int]:
    """Those of a pod's devices that are sick."""
    sick = state.sick.get(pod["spec"].get("nodeName", ""))
    return devices_of(state, pod) & sick.numbers if sick is not None else frozenset()


def ends_engine(state: ClusterState, pod: Manifest) -> bool:
    """Whether a sick device of the pod ends its engine, however often it is started again."""
    sick = state.sick.get(pod["spec"].get("nodeName", ""))
    return sick is not None and sick.fail and bool(sick_devices_of(state, pod))


def with_health(state: ClusterState, pod: Manifest, containers: list[Manifest]) -> None:
    """Add what a kubelet says of a pod's devices to the status of its engine's container."""
    sick = state.sick.get(pod["spec"].get("nodeName", ""))
    if sick is None or not sick.told or not devices_of(state, pod):
        return
    resources = [
        {"resourceID": f"gpu-{n}", "health": "Unhealthy" if n in sick.numbers else "Healthy"}
        for n in sorted(devices_of(state, pod))
    ]
    name = "claim:gpus/gpus" if pod["spec"].get("resourceClaims") else RESOURCE
    containers[0]["allocatedResourcesStatus"] = [{"name": name, "resources": resources}]
