"""An autoscaler may ask for as many replicas more than the nodes hold as bring nodes by their
Pending pods, where something adds nodes for these."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from atom_operator.domain import ATOM_DEPLOYMENT, Manifest
from tests.support.in_memory_cluster.cluster import InMemoryCluster
from tests.support.in_memory_cluster.operator_client import OperatorClient
from tests.support.operator.builders_operator import atom_deployment, condition, gpu_node
from tests.support.operator_life.others_at_work import NodeAutoscaler

_KARPENTER = {"karpenter.sh/nodepool": "gpus"}
_CLUSTER_AUTOSCALER = {"cluster-autoscaler.kubernetes.io/scale-down-disabled": "false"}


def _node(number: int) -> Manifest:
    return gpu_node("abcdefgh"[number])


class Scaled:
    """`chat` of 8 devices under an autoscaler of 1 to 4, on one node of 8, and what adds nodes."""

    def __init__(self, marks: dict[str, Any], **scaling: Any) -> None:
        first = _node(0)
        first["metadata"]["labels"] |= marks.get("labels", {})
        first["metadata"]["annotations"] = marks.get("annotations", {})
        self.cluster = InMemoryCluster(nodes=[first])
        self.operator = OperatorClient(self.cluster)
        self.cluster.clients.append(NodeAutoscaler(self.cluster, _node).look)
        spec: dict[str, Any] = {"model": {"source": "hf://Qwen/Qwen3-8B"}}
        spec |= {"accelerator": {"type": "amd", "product": "MI300X"}, "parallelism": {"tensor": 8}}
        asked = {"minReplicas": 1, "maxReplicas": 4, "method": "HPA", **scaling}
        self.cluster.api.create(ATOM_DEPLOYMENT, atom_deployment(autoscaling=asked, **spec))
        self.cluster.advance(400)
        self.cluster.state.load["chat"] = 4.0

    @property
    def serving(self) -> int:
        return len(self.cluster.serving("chat"))


@pytest.fixture
def begin() -> Iterator[Any]:
    begun: list[Scaled] = []

    def _begin(*arguments: Any, **scaling: Any) -> Scaled:
        begun.append(Scaled(*arguments, **scaling))
        return begun[-1]

    yield _begin
    for scaled in begun:
        scaled.operator.close()


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("marks", "scaling"),
    [
        ({}, {"pendingReplicas": 1}),
        ({}, {"pendingReplicas": 3}),
        ({"labels": _KARPENTER}, {}),
        ({"annotations": _CLUSTER_AUTOSCALER}, {}),
    ],
)
def test_a_pending_pod_brings_a_node_until_the_load_is_served(
    begin: Any, marks: dict[str, Any], scaling: dict[str, Any]
) -> None:
    scaled = begin(marks, **scaling)
    scaled.cluster.advance(30)
    limited = condition(scaled.cluster.api, "CapacityLimited")
    assert limited["status"] == "True"
    assert "would be Pending" in limited["message"]
    assert ("pendingReplicas" if scaling else "adds nodes") in limited["message"]
    scaled.cluster.advance(3600)
    assert scaled.serving == 4
    assert condition(scaled.cluster.api, "CapacityLimited")["status"] == "False"
    assert condition(scaled.cluster.api, "Ready")["status"] == "True"


@pytest.mark.parametrize(
    ("marks", "scaling"), [({}, {}), ({"labels": _KARPENTER}, {"pendingReplicas": 0})]
)
def test_without_one_no_pod_waits_for_a_node(
    begin: Any, marks: dict[str, Any], scaling: dict[str, Any]
) -> None:
    scaled = begin(marks, **scaling)
    scaled.cluster.advance(3600)
    assert (scaled.serving, len(scaled.cluster.pods)) == (1, 1)
    assert "so at most 1 are asked" in condition(scaled.cluster.api, "CapacityLimited")["message"]
