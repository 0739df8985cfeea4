"""The accelerators of the cluster: which node has how many of a resource, free, and for us. Pure.

Free is allocatable minus what scheduled pods request, of the exact resource. Allocatable leaves out
devices that the plugin calls unhealthy. Called by reconcile with the nodes and pods it has read.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from atom_operator import constants
from atom_operator.domain import Manifest, NodeSupply, ObjectKey, Supply
from atom_operator.plan.eligibility import node_blockers
from atom_operator.plan.node_labels import label_values, memory_share_bytes, unhealthy_devices

_ACCELERATOR = re.compile(r"^amd\.com/(gpu|(spx|dpx|qpx|cpx)_nps[124])$")
_NAMED_NODES = 8  # of each sort in a message, which is limited


@dataclass(frozen=True, slots=True)
class PodsAsked:
    """Pods that want devices: of an AtomDeployment (`key`), with this pod spec, each some of
    `resource`. revision: those that have it already make no room for others of it."""

    key: ObjectKey
    resource: str
    pod_spec: Mapping[str, Any]
    revision: str | None = None


def survey(nodes: Iterable[Manifest], pods: Iterable[Manifest], asked: PodsAsked) -> Supply:
    """What the cluster has for pods that are asked for; nodes without any AMD device are left
    out."""
    resource = asked.resource
    requested, held = Counter[str](), Counter[str]()
    ours, placed, leaving = Counter[str](), Counter[str](), Counter[str]()
    released = 0
    for pod in pods:
        node = (pod.get("spec") or {}).get("nodeName")
        if not node or (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
            continue
        amount = requested_devices(pod["spec"], resource)
        requested[node] += amount
        if not _is_of(pod, asked.key):
            continue
        held[node] += amount
        ends = bool(pod["metadata"].get("deletionTimestamp"))
        (leaving if ends else placed)[node] += 1
        if not _has_revision(pod, asked.revision):
            ours[node] += 1
            released = min(released, amount) if released else amount
    supplies = (
        NodeSupply(
            name=node["metadata"]["name"],
            allocatable=_allocatable(node, resource),
            requested=requested[node["metadata"]["name"]],
            ours=ours[node["metadata"]["name"]],
            held=held[node["metadata"]["name"]],
            placed=placed[node["metadata"]["name"]],
            unhealthy=_unhealthy(node, resource),
            blockers=(*_lacks(node, resource), *node_blockers(node, asked.pod_spec)),
        )
        for node in nodes
        if amd_resources(node)
    )
    demand = requested_devices(asked.pod_spec, resource)
    ordered = tuple(sorted(supplies, key=lambda supply: supply.name))
    stuck = sum(leaving[node.name] for node in ordered if node.blockers)
    return Supply(resource, demand, ordered, released, stuck)


def requested_devices(pod_spec: Mapping[str, Any], resource: str) -> int:
    """Devices of `resource` that a pod occupies: containers together, or its largest init step."""
    together = sum(_request(item, resource) for item in pod_spec.get("containers") or ())
    largest = 0
    for item in pod_spec.get("initContainers") or ():
        if item.get("restartPolicy") == "Always":  # a sidecar runs as long as the pod
            together += _request(item, resource)
        else:
            largest = max(largest, _request(item, resource))
    return max(together, largest)


def can_take_one(supply: Supply) -> NodeSupply | None:
    """The node with the most free devices that can take one more pod; none where the nodes cannot
    take every pod of one more replica."""
    candidates = [n for n in supply.nodes if not n.blockers and n.free >= supply.demand]
    places = sum(node.free // supply.demand for node in candidates) if supply.demand else 1
    if places < supply.pods_per_replica:
        return None
    return max(candidates, key=lambda node: node.free, default=None)


def shortage(supply: Supply) -> str | None:
    """Why not one more pod finds a node: what is free where, and what blocks the others."""
    if can_take_one(supply) is not None:
        return None
    each = f"{supply.demand} {supply.resource} on one node"
    pods = supply.pods_per_replica
    wanted = f"a pod needs {each}" if pods == 1 else f"each of {pods} pods needs {each}"
    if not supply.nodes:
        return f"{wanted}, and no node of the cluster has AMD devices; is the device plugin running"
    free = [_free(node) for node in supply.nodes if not node.blockers]
    blocked = [f"{n.name}: {', '.join(n.blockers)}" for n in supply.nodes if n.blockers]
    parts = [f"free: {_some(free)}"] if free else ["no eligible node"]
    if blocked:
        parts.append(f"blocked: {_some(blocked, '; ')}")
    return f"{wanted}; {'; '.join(parts)}"


def _free(node: NodeSupply) -> str:
    lost = f" ({node.unhealthy} unhealthy)" if node.unhealthy else ""
    return f"{node.name} {node.free} of {node.allocatable}{lost}"


def memory_per_device(
    nodes: Iterable[Manifest], resource: str, device_ids: tuple[str, ...]
) -> tuple[int, ...]:
    """The different memory shares of one device of `resource` on the nodes that have it, sorted.

    With `device_ids`, of the nodes with one of these. Nodes whose memory is unknown say nothing.
    """
    found: set[int] = set()
    for node in nodes:
        labels = node["metadata"].get("labels") or {}
        if not _allocatable(node, resource):
            continue
        if device_ids and not set(device_ids) & set(label_values(labels, "device-id")):
            continue
        memory = memory_share_bytes(labels, resource)
        if memory is not None:
            found.add(memory)
    return tuple(sorted(found))


def amd_resources(node: Manifest) -> tuple[str, ...]:
    """The AMD resources that the node has ever had, also when all devices are unhealthy."""
    status: Mapping[str, Any] = node.get("status") or {}
    names = {**(status.get("capacity") or {}), **(status.get("allocatable") or {})}
    return tuple(sorted(name for name in names if _ACCELERATOR.match(name)))


def _allocatable(node: Manifest, resource: str) -> int:
    return _count((node.get("status") or {}).get("allocatable"), resource)


def _unhealthy(node: Manifest, resource: str) -> int:
    """Devices that the plugin has taken out of what may be allocated."""
    capacity = _count((node.get("status") or {}).get("capacity"), resource)
    return max(0, capacity - _allocatable(node, resource))


def device_conditions(node: Manifest) -> tuple[str, ...]:
    """What node-problem-detector says against the devices; the scheduler does not act on it."""
    conditions = (node.get("status") or {}).get("conditions") or ()
    return tuple(
        str(item["type"])
        for item in conditions
        if str(item.get("type", "")).startswith("AMDGPU") and item.get("status") == "True"
    )


def _lacks(node: Manifest, resource: str) -> tuple[str, ...]:
    """Why the node itself offers less of the resource than its hardware suggests."""
    if _allocatable(node, resource):
        return ()
    if _count((node.get("status") or {}).get("capacity"), resource):
        ids = ", ".join(unhealthy_devices(node["metadata"].get("labels") or {}))
        return (f"every {resource} is unhealthy" + (f" (devices {ids})" if ids else ""),)
    others = ", ".join(name for name in amd_resources(node) if name != resource)
    return (f"has {others} and no {resource}" if others else f"has no {resource}",)


def _request(container: Mapping[str, Any], resource: str) -> int:
    resources = container.get("resources")
    if not isinstance(resources, Mapping):  # an overlay may say anything
        return 0
    return _count(resources.get("requests"), resource) or _count(resources.get("limits"), resource)


def _count(quantities: object, resource: str) -> int:
    text = str(quantities.get(resource, 0)) if isinstance(quantities, Mapping) else ""
    return int(text) if text.isdigit() else 0  # extended resources are whole numbers


def _has_revision(pod: Manifest, revision: str | None) -> bool:
    annotations = pod["metadata"].get("annotations") or {}
    return revision is not None and annotations.get(constants.ANNOTATION_REVISION) == revision


def _is_of(pod: Manifest, key: ObjectKey) -> bool:
    metadata = pod["metadata"]
    label = (metadata.get("labels") or {}).get(constants.LABEL_DEPLOYMENT)
    return metadata.get("namespace") == key.namespace and label == key.name


def _some(names: list[str], separator: str = ", ") -> str:
    rest = len(names) - _NAMED_NODES
    more = f"{separator}{rest} more" if rest > 0 else ""
    return separator.join(names[:_NAMED_NODES]) + more
