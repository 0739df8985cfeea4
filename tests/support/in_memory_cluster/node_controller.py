"""Nodes that fall silent: what the node controller and the pod garbage collector do about their
pods, and drains by eviction, which a disruption budget may hold up.

After five minutes the pods of a silent node are to end; they are gone only when the node is back or
is deleted, because until then nobody knows whether they run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atom_operator.domain import DISRUPTION_BUDGET, POD, Manifest
from atom_operator.kinds import REPLICA_SET
from tests.support.in_memory_cluster.state import (
    ClusterState,
    active,
    condition_of,
    controller_of,
    is_ready,
    is_terminal,
    with_condition,
)

_EVICTION_SECONDS = 300.0
_RETRY_SECONDS = 20.0


def sync_nodes(state: ClusterState) -> None:
    names = {node["metadata"]["name"] for node in state.api.nodes or []}
    for node in state.api.nodes or []:
        _show(state, node)
    for pod in state.all(POD):
        place = pod["spec"].get("nodeName")
        if place and place not in names:
            state.remove(POD, pod)  # garbage of a node that is no more
        elif place in state.lost and not is_terminal(pod):
            _give_up(state, pod)
    for name in sorted(state.draining & names):
        _drain(state, name)


def _show(state: ClusterState, node: Manifest) -> None:
    """Write Ready=Unknown of a node that does not report."""
    silent = node["metadata"]["name"] in state.lost
    value = "Unknown" if silent else "True"
    known = condition_of(node, "Ready") or {}
    if known.get("status") == value:
        return
    found = {"type": "Ready", "status": value, "lastTransitionTime": state.stamp()}
    node["status"] = with_condition(node["status"], found)


def _give_up(state: ClusterState, pod: Manifest) -> None:
    node = next(
        node
        for node in state.api.nodes or []
        if node["metadata"]["name"] == pod["spec"]["nodeName"]
    )
    since = state.seconds_since((condition_of(node, "Ready") or {}).get("lastTransitionTime"))
    if is_ready(pod):
        found = {"type": "Ready", "status": "False", "lastTransitionTime": state.stamp()}
        state.set_status(pod, with_condition(pod["status"], found))
    if since >= _EVICTION_SECONDS:
        state.delete_pod(pod)
    else:
        state.look_after(_EVICTION_SECONDS - since)


def _drain(state: ClusterState, name: str) -> None:
    """`kubectl drain`: cordon, then evict one after the other, again and again."""
    for node in state.api.nodes or []:
        if node["metadata"]["name"] == name:
            node["spec"]["unschedulable"] = True
    for pod in active(state.all(POD)):
        if pod["spec"].get("nodeName") == name and not evict(state, pod):
            state.look_after(_RETRY_SECONDS)


def evict(state: ClusterState, pod: Manifest) -> bool:
    """The Eviction API: whether every budget lets the pod go."""
    for budget in state.all(DISRUPTION_BUDGET):
        wanted = (budget["spec"].get("selector") or {}).get("matchLabels") or {}
        if not wanted.items() <= (pod["metadata"].get("labels") or {}).items():
            continue
        pods = [
            other
            for other in active(state.all(POD))
            if wanted.items() <= (other["metadata"].get("labels") or {}).items()
        ]
        if is_ready(pod) and _allowed(state, budget["spec"], pods) < 1:
            return False
    state.delete_pod(pod)
    return True


def _allowed(state: ClusterState, spec: Mapping[str, Any], pods: list[Manifest]) -> int:
    healthy, expected = sum(map(is_ready, pods)), _expected(state, pods)
    if "minAvailable" in spec:
        return healthy - _number(spec["minAvailable"], expected)
    return healthy - (expected - _number(spec.get("maxUnavailable", 0), expected))


def _expected(state: ClusterState, pods: list[Manifest]) -> int:
    """How many pods their controllers are to have, as the disruption controller finds out."""
    by_uid = {item["metadata"].get("uid"): item for item in state.api.objects.values()}
    scales: dict[str, int] = {}
    for pod in pods:
        owner = by_uid.get(controller_of(pod))
        if owner is not None and owner["kind"] == REPLICA_SET.kind:
            owner = by_uid.get(controller_of(owner), owner)
        if owner is not None:
            scales[owner["metadata"]["uid"]] = owner["spec"].get("replicas", 1)
    return sum(scales.values())


def _number(value: Any, count: int) -> int:
    text = str(value)
    return -(-count * int(text[:-1]) // 100) if text.endswith("%") else int(text)
