"""Devices count under whatever name the spec gives them: free, sick, in ceilings and rollouts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from atom_operator.domain import ATOM_DEPLOYMENT, DEPLOYMENT
from atom_operator.kinds import AUTOSCALER
from tests.support.in_memory_cluster.cluster import InMemoryCluster
from tests.support.in_memory_cluster.operator_client import OperatorClient
from tests.support.operator.builders_operator import atom_deployment, condition, gpu_node
from tests.support.operator.status_shown import ABSENT

NAMES = ("amd.com/gpu", "amd.com/gpu-shared", "example.com/mi300x", "amd.com/cpx_nps4")
_PER_NODE = 8


class Named:
    """`chat` with tensor parallelism of 4, and two nodes of 8 devices of that name."""

    def __init__(self, resource: str, **spec: Any) -> None:
        nodes = [gpu_node(name, _PER_NODE, resource=resource) for name in "ab"]
        self.resource, self.cluster = resource, InMemoryCluster(nodes=nodes)
        self.operator = OperatorClient(self.cluster)
        accelerator = {"type": "amd", "memory": "192Gi", "resourceName": resource}
        asked = {"parallelism": {"tensor": 4}, "model": {"source": "hf://Qwen/Qwen3-8B"}}
        self.cluster.api.create(
            ATOM_DEPLOYMENT, atom_deployment(**{**asked, "accelerator": accelerator, **spec})
        )
        self.cluster.advance(400)

    def said(self, kind: str) -> dict[str, Any]:
        found = self.cluster.api.find(ATOM_DEPLOYMENT, "chat")["status"]["conditions"]
        return dict(next((item for item in found if item["type"] == kind), ABSENT))

    def change(self) -> str:
        """Ask for other pods, and say how they are replaced."""
        self.cluster.api.change_spec(ATOM_DEPLOYMENT, "chat", engine={"maxModelLen": 1024})
        self.cluster.advance(400)
        assert condition(self.cluster.api, "Ready")["status"] == "True"
        return str(self.cluster.api.find(ATOM_DEPLOYMENT, "chat")["status"]["rollout"]["strategy"])

    def offer(self, node: str, devices: int) -> None:
        self.cluster.node(node)["status"]["allocatable"][self.resource] = str(devices)


@pytest.fixture(params=NAMES)
def begin(request: pytest.FixtureRequest) -> Iterator[Any]:
    begun: list[Named] = []

    def _begin(**spec: Any) -> Named:
        begun.append(Named(request.param, **spec))
        return begun[-1]

    yield _begin
    for named in begun:
        named.operator.close()


def test_an_autoscaler_may_ask_for_what_the_nodes_hold(begin: Any) -> None:
    scaling = {"minReplicas": 1, "maxReplicas": 16, "method": "HPA"}
    named = begin(autoscaling=scaling)
    named.cluster.state.load["chat"] = 16.0
    named.cluster.advance(600)
    (scaler,) = [item for key, item in named.cluster.api.objects.items() if key[0] == AUTOSCALER]
    assert scaler["spec"]["maxReplicas"] == 4
    assert len(named.cluster.serving("chat")) == 4
    assert "the nodes hold 4 replicas" in named.said("CapacityLimited")["message"]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("replicas", "strategy"), [(1, "Surge"), (3, "Surge"), (4, "InPlace")])
def test_a_rollout_knows_what_is_free(begin: Any, replicas: int, strategy: str) -> None:
    assert begin(replicas=replicas).change() == strategy


def test_a_pod_whose_devices_are_taken_out_is_told_of_and_moved(begin: Any) -> None:
    named = begin(replicas=1)
    (pod,) = named.cluster.pods
    sick, other = pod["spec"]["nodeName"], {"a": "b", "b": "a"}[pod["spec"]["nodeName"]]
    named.offer(other, 0)
    named.offer(sick, 0)
    named.cluster.advance(900)
    told = named.said("DevicesHealthy")
    assert (told["status"], told["reason"]) == ("False", "NoOtherPlace")
    assert f"8 of 8 {named.resource} of the node are unhealthy" in told["message"]
    named.offer(other, _PER_NODE)
    named.cluster.advance(900)
    assert [pod["spec"]["nodeName"] for pod in named.cluster.serving("chat")] == [other]
    assert named.cluster.api.find(DEPLOYMENT, "chat")["status"]["availableReplicas"] == 1


def test_a_cluster_without_the_resource_is_told_by_its_name(begin: Any) -> None:
    named = begin(replicas=5)
    assert named.resource in named.said("Scheduled")["message"]
