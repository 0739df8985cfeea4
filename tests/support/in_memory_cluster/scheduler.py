"""The scheduler: which node a pod goes to, or in its own words why none takes it.

Knows every resource that a node offers (devices, memory, cpu, ephemeral storage, hugepages, pods),
taints, cordons, node selectors and affinity, host ports, where claims can be mounted, and which
pods are kept apart. Of the nodes that could take a pod it takes the one with the fewest of its
kind, then the emptiest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from atom_operator.domain import POD, Manifest
from tests.support.in_memory_cluster.claims import claim_names, conflict, unbound
from tests.support.in_memory_cluster.devices.device_claims import (
    allocate,
    objection,
    waits_for_claim,
)
from tests.support.in_memory_cluster.node_fit import node_objections
from tests.support.in_memory_cluster.other_pods import apart, lonely, takes_port, uneven
from tests.support.in_memory_cluster.quantities import Amounts, requests_of, thousandths
from tests.support.in_memory_cluster.state import (
    ClusterState,
    condition_of,
    is_terminal,
    with_condition,
)

_PODS_PER_NODE = "110"
# What a node of the tests offers when it does not say: enough to be in nobody's way.
_PLENTY = {
    "cpu": "512",
    "memory": "8Ti",
    "ephemeral-storage": "64Ti",
    "pods": _PODS_PER_NODE,
}


def schedule(state: ClusterState) -> None:
    """Place every pod that has no node: by priority, and oldest first."""
    for pod in sorted(state.all(POD), key=_turn):
        if pod["spec"].get("nodeName") or is_terminal(pod) or state.is_told(pod):
            continue
        if pod["metadata"].get("deletionTimestamp"):
            continue
        if pod["spec"].get("schedulingGates"):
            words = "Scheduling is blocked due to non-empty scheduling gates"
            _say(state, pod, "False", "SchedulingGated", words)
        elif not waits_for_claim(state, pod):
            _place(state, pod)


def _turn(pod: Manifest) -> tuple[int, str]:
    return -(pod["spec"].get("priority") or 0), str(pod["metadata"].get("creationTimestamp"))


def free_on(state: ClusterState, node: Manifest) -> Amounts:
    """What is allocatable on a node and not requested."""
    offered = {**_PLENTY, **((node.get("status") or {}).get("allocatable") or {})}
    free = Counter({name: thousandths(str(value)) for name, value in offered.items()})
    for pod in state.all(POD):
        if pod["spec"].get("nodeName") == node["metadata"]["name"] and not is_terminal(pod):
            free.subtract(requests_of(pod["spec"]))
            free["pods"] -= 1000
    return free


def nodes_for(state: ClusterState, pod: Manifest) -> list[Manifest]:
    """The nodes that take such a pod now."""
    if unbound(state, pod) is not None:
        return []
    return [node for node in state.api.nodes or [] if not list(_objections(state, node, pod))]


def _place(state: ClusterState, pod: Manifest) -> None:
    nodes = state.api.nodes or []
    total = len(nodes)
    lacking = unbound(state, pod)
    if lacking is not None:
        return _leave(state, pod, f"0/{total} nodes are available: {lacking}.")
    objections = {node["metadata"]["name"]: list(_objections(state, node, pod)) for node in nodes}
    open_nodes = [node for node in nodes if not objections[node["metadata"]["name"]]]
    if not open_nodes:
        counted = Counter(words for found in objections.values() for words in found)
        parts = sorted(f"{count} {words}" for words, count in counted.items())
        return _leave(state, pod, f"0/{total} nodes are available: {', '.join(parts)}.")
    best = max(open_nodes, key=lambda node: _liking(state, node, pod))
    allocate(state, best, pod)
    pod["spec"]["nodeName"] = best["metadata"]["name"]
    _say(state, pod, "True", None, None)
    return None


def _objections(state: ClusterState, node: Manifest, pod: Manifest) -> Iterator[str]:
    """What the filters hold against a node; the first that objects ends them, as in the
    scheduler."""
    found = list(node_objections(node, pod["spec"]))
    if found:
        yield found[0]
        return
    if takes_port(state, node, pod):
        yield "node(s) didn't have free ports for the requested pod ports"
        return
    lacking = list(_lacking(state, node, pod))
    if lacking:
        yield from lacking
        return
    words = conflict(state, node, pod) if claim_names(pod) else None
    words = words or apart(state, node, pod) or lonely(state, node, pod)
    words = words or uneven(state, node, pod) or objection(state, node, pod)
    if words is not None:
        yield words


def _lacking(state: ClusterState, node: Manifest, pod: Manifest) -> Iterator[str]:
    free, asked = free_on(state, node), requests_of(pod["spec"])
    if free["pods"] < 1000:
        yield "Too many pods"
    for name in sorted(asked):
        if asked[name] and asked[name] > free[name]:
            yield f"Insufficient {name}"


def _liking(state: ClusterState, node: Manifest, pod: Manifest) -> tuple[Any, ...]:
    name = node["metadata"]["name"]
    same = sum(
        other["spec"].get("nodeName") == name
        and other["metadata"].get("labels") == pod["metadata"].get("labels")
        for other in state.all(POD)
    )
    free = free_on(state, node)
    asked = requests_of(pod["spec"])
    return (-same, *(free[resource] for resource in sorted(asked)), name)


def _leave(state: ClusterState, pod: Manifest, words: str) -> None:
    if _say(state, pod, "False", "Unschedulable", words):
        state.record(pod, "FailedScheduling", words)


def _say(
    state: ClusterState, pod: Manifest, value: str, reason: str | None, words: str | None
) -> bool:
    known: Mapping[str, Any] = condition_of(pod, "PodScheduled") or {}
    found: Manifest = {"type": "PodScheduled", "status": value}
    if reason is not None:
        found |= {"reason": reason, "message": words}
    if {name: known.get(name) for name in found} == found and reason == known.get("reason"):
        return False
    moved = known.get("status") != value
    found["lastTransitionTime"] = state.stamp() if moved else known["lastTransitionTime"]
    pod["status"] = with_condition(pod.get("status") or {}, found)
    state.api.touch(pod)
    return True
