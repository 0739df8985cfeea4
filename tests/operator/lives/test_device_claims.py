"""Pods that claim their devices from a DRA driver: counted, rolled out and refused as with a device
plugin."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from atom_operator.domain import ATOM_DEPLOYMENT, ATOM_PROFILE, DEPLOYMENT
from atom_operator.integration_values import EngineFeature, Site
from atom_operator.kinds import (
    DEVICE_CLASS,
    RESOURCE_CLAIM,
    RESOURCE_CLAIM_TEMPLATE,
    RESOURCE_SLICE,
)
from tests.support.in_memory_cluster.cluster import InMemoryCluster
from tests.support.in_memory_cluster.devices.device_claims import publish_class, publish_devices
from tests.support.in_memory_cluster.kinds import RESOURCE_QUOTA
from tests.support.in_memory_cluster.operator_client import OperatorClient
from tests.support.operator.builders_operator import atom_deployment, condition
from tests.support.operator.fake_cluster import FakeCluster

RESOURCE = "deviceclass.resource.kubernetes.io/gpu.amd.com"
_SITE = Site(
    engine_tensor_parallel=16,
    engine_multi_node=True,
    engine_features=frozenset({EngineFeature.EXPERT_PARALLEL}),
)
GROUPS: dict[str, dict[str, Any]] = {
    "tensor parallel": {"parallelism": {"tensor": 16, "nodes": 2}},
    "experts": {
        "model": {"source": "hf://Qwen/Qwen3-30B-A3B"},
        "parallelism": {"data": 16, "expert": True, "nodes": 2},
    },
}


def plain_node(name: str) -> dict[str, Any]:
    """A node without a device plugin and without the labels of one."""
    return {
        "metadata": {"name": name, "labels": {}},
        "spec": {},
        "status": {
            "capacity": {"cpu": "128"},
            "allocatable": {"cpu": "128"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


class Claiming:
    """A cluster of nodes that publish devices, and `chat`, which claims some."""

    def __init__(self, nodes: int, *, gpus: int = 8) -> None:
        names = "abcdef"[:nodes]
        self.cluster = InMemoryCluster(FakeCluster(), [plain_node(name) for name in names])
        self.operator = OperatorClient(self.cluster, site=_SITE)
        publish_class(self.cluster.state)
        for name in names:
            publish_devices(self.cluster.state, name, gpus)

    @property
    def api(self) -> FakeCluster:
        return self.cluster.api

    def ask(self, **changes: Any) -> None:
        spec: dict[str, Any] = {
            "model": {"source": "hf://Qwen/Qwen3-8B"},
            "accelerator": {"product": "MI300X", "claim": {}},
            "parallelism": {"tensor": 8},
        }
        manifest = atom_deployment("chat")
        manifest["spec"] = {**spec, **changes}
        self.api.create(ATOM_DEPLOYMENT, manifest)
        self.cluster.advance(400)

    @property
    def strategy(self) -> Any:
        return self.api.find(DEPLOYMENT, "chat")["spec"]["strategy"]

    def nodes(self) -> list[str]:
        return sorted(str(pod["spec"].get("nodeName")) for pod in self.cluster.pods)


@pytest.fixture
def begin() -> Iterator[Any]:
    begun: list[Claiming] = []

    def _begin(nodes: int, **changes: Any) -> Claiming:
        begun.append(Claiming(nodes, **changes))
        return begun[-1]

    yield _begin
    for claiming in begun:
        claiming.operator.close()


def test_each_pod_has_a_claim_for_all_of_its_devices(begin: Any) -> None:
    claiming = begin(2)
    claiming.ask(replicas=2)
    assert condition(claiming.api, "Ready")["status"] == "True"
    assert claiming.nodes() == ["a", "b"]
    claims = claiming.cluster.state.all(RESOURCE_CLAIM)
    assert [len(c["status"]["allocation"]["devices"]["results"]) for c in claims] == [8, 8]
    (engine,) = claiming.cluster.pods[0]["spec"]["containers"]
    assert engine["resources"]["claims"] == [{"name": "gpus"}]
    assert RESOURCE not in engine["resources"].get("limits", {})


@pytest.mark.parametrize("kind", GROUPS)
def test_each_pod_of_a_group_has_a_claim_for_its_part_of_the_devices(begin: Any, kind: str) -> None:
    claiming = begin(3)
    claiming.ask(**GROUPS[kind])
    assert condition(claiming.api, "Ready")["status"] == "True"
    claims = claiming.cluster.state.all(RESOURCE_CLAIM)
    held = {claim["status"]["reservedFor"][0]["name"]: claim for claim in claims}
    assert sorted(held) == ["chat-0", "chat-0-1"]
    for claim in held.values():
        assert len(claim["status"]["allocation"]["devices"]["results"]) == 8
    assert len(set(claiming.nodes())) == 2


@pytest.mark.parametrize("kind", GROUPS)
def test_a_group_for_which_a_node_lacks_is_told_in_devices_of_its_class(
    begin: Any, kind: str
) -> None:
    claiming = begin(1)
    claiming.ask(**GROUPS[kind])
    told = condition(claiming.api, "Scheduled")
    assert told["reason"] == "InsufficientAccelerators"
    assert f"each of 2 pods needs 8 {RESOURCE} on one node; free: a 0 of 8" in told["message"]
    publish = claiming.cluster.api.nodes
    assert publish is not None
    publish.append(plain_node("b"))
    publish_devices(claiming.cluster.state, "b", 8)
    claiming.cluster.advance(700)
    assert condition(claiming.api, "Ready")["status"] == "True"


def test_an_autoscaler_of_groups_is_bounded_by_published_devices(begin: Any) -> None:
    claiming = begin(5)
    scaling = {"method": "HPA", "minReplicas": 1, "maxReplicas": 5}
    claiming.ask(**GROUPS["tensor parallel"], autoscaling=scaling)
    told = condition(claiming.api, "CapacityLimited")
    assert (told["status"], told["reason"]) == ("True", "TooFewAccelerators")
    assert "the nodes hold 2 replicas" in told["message"]


def test_groups_of_other_pods_and_single_pods_take_each_others_devices(begin: Any) -> None:
    claiming = begin(2)
    claiming.ask(**GROUPS["tensor parallel"])
    claiming.ask(parallelism={"tensor": 8}, replicas=2)
    claiming.cluster.advance(900)
    assert condition(claiming.api, "Ready")["status"] == "True"
    assert claiming.nodes() == ["a", "b"]
    claiming.ask(**GROUPS["tensor parallel"])
    claiming.cluster.advance(900)
    assert condition(claiming.api, "Ready")["status"] == "True"
    assert {pod["metadata"]["name"] for pod in claiming.cluster.pods} == {"chat-0", "chat-0-1"}


def test_a_spare_pod_comes_first_where_a_node_has_unclaimed_devices(begin: Any) -> None:
    claiming = begin(2)
    claiming.ask()
    claiming.ask(engine={"maxModelLen": 1024})
    rollout = claiming.api.find(ATOM_DEPLOYMENT, "chat")["status"]["rollout"]
    assert rollout["strategy"] == "Surge"
    assert f"has 8 {RESOURCE} free, and a pod needs 8" in rollout["reason"]
    assert condition(claiming.api, "Ready")["status"] == "True"


def test_a_new_pod_takes_the_place_of_an_old_one_where_all_are_claimed(begin: Any) -> None:
    claiming = begin(1)
    claiming.ask()
    claiming.ask(engine={"maxModelLen": 1024})
    assert claiming.strategy["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
    assert condition(claiming.api, "Ready")["status"] == "True"


def test_other_devices_are_another_template_and_the_one_before_goes_with_its_pods(
    begin: Any,
) -> None:
    claiming = begin(2)
    claiming.ask()
    (first,) = claiming.api.names(RESOURCE_CLAIM_TEMPLATE)
    claiming.ask(parallelism={"tensor": 4})
    claiming.cluster.advance(900)
    (second,) = claiming.api.names(RESOURCE_CLAIM_TEMPLATE)
    assert second != first
    (request,) = claiming.api.find(RESOURCE_CLAIM_TEMPLATE, second)["spec"]["spec"]["devices"][
        "requests"
    ]
    assert request["exactly"]["count"] == 4


def test_devices_of_another_product_or_with_a_taint_are_no_place(begin: Any) -> None:
    claiming = begin(1)
    state = claiming.cluster.state
    (offered,) = state.all(RESOURCE_SLICE)
    for device in offered["spec"]["devices"][:4]:
        device["attributes"]["deviceID"] = {"string": "0x75a0"}
    for device in offered["spec"]["devices"][4:]:
        device["taints"] = [{"key": "amd.com/sick", "effect": "NoExecute"}]
    claiming.ask(parallelism={"tensor": 4})
    told = condition(claiming.api, "Scheduled")
    assert told["reason"] == "InsufficientAccelerators"
    assert f"every {RESOURCE} is unhealthy" in told["message"]


@pytest.mark.parametrize(
    ("gone", "words"),
    [
        (DEVICE_CLASS, "DeviceClass gpu.amd.com does not exist"),
        (RESOURCE_SLICE, "no node publishes a device of driver gpu.amd.com"),
    ],
)
def test_what_no_driver_publishes_is_said_by_name(begin: Any, gone: Any, words: str) -> None:
    claiming = begin(1)
    for item in claiming.cluster.state.all(gone):
        claiming.cluster.state.remove(gone, item)
    claiming.ask()
    told = condition(claiming.api, "Scheduled")
    assert told["reason"] == "InsufficientAccelerators"
    assert words in told["message"]


def test_a_cluster_without_the_api_refuses_the_claim(begin: Any) -> None:
    claiming = begin(1)
    claiming.api.unserved_kinds.add(RESOURCE_CLAIM_TEMPLATE)
    claiming.ask()
    told = condition(claiming.api, "Accepted")
    assert (told["status"], told["reason"]) == ("False", "ApiNotServed")
    assert "spec.accelerator.claim" in told["message"]


def test_an_autoscaler_is_bounded_by_published_devices(begin: Any) -> None:
    claiming = begin(3)
    claiming.ask(autoscaling={"method": "HPA", "minReplicas": 1, "maxReplicas": 5})
    told = condition(claiming.api, "CapacityLimited")
    assert (told["status"], told["reason"]) == ("True", "TooFewAccelerators")
    assert "the nodes hold 3 replicas" in told["message"]


def test_memory_of_unnamed_products_is_what_devices_publish(begin: Any) -> None:
    claiming = begin(1)
    claiming.ask(accelerator={"claim": {}}, parallelism={"tensor": 1})
    told = condition(claiming.api, "CapacityFits")
    assert told["status"] == "True", told


def test_a_profile_has_its_pods_claim_their_devices(begin: Any) -> None:
    claiming = begin(2)
    profile = {"metadata": {"name": "default", "namespace": ""}}
    claiming.api.create(ATOM_PROFILE, {**profile, "spec": {"accelerator": {"claim": {}}}})
    claiming.ask(accelerator={"product": "MI300X"})
    assert "accelerator.claim" in condition(claiming.api, "Accepted")["message"]
    assert condition(claiming.api, "Ready")["status"] == "True"
    (first,) = claiming.api.names(RESOURCE_CLAIM_TEMPLATE)
    claiming.ask(accelerator={"product": "MI300X"}, parallelism={"tensor": 4})
    claiming.cluster.advance(900)
    (second,) = claiming.api.names(RESOURCE_CLAIM_TEMPLATE)
    assert second != first


def test_a_cluster_without_the_api_refuses_the_claim_of_a_profile(begin: Any) -> None:
    claiming = begin(1)
    claiming.api.unserved_kinds.add(RESOURCE_CLAIM_TEMPLATE)
    profile = {"metadata": {"name": "default", "namespace": ""}}
    claiming.api.create(ATOM_PROFILE, {**profile, "spec": {"accelerator": {"claim": {}}}})
    claiming.ask(accelerator={"product": "MI300X"})
    told = condition(claiming.api, "Accepted")
    assert (told["status"], told["reason"]) == ("False", "ApiNotServed")


QUOTA = "gpu.amd.com.deviceclass.resource.k8s.io/devices"


def _limit(claiming: Claiming, devices: int) -> None:
    for quota in claiming.cluster.state.all(RESOURCE_QUOTA):
        claiming.cluster.state.remove(RESOURCE_QUOTA, quota)
    hard = {"hard": {QUOTA: str(devices)}}
    claiming.cluster.state.create(RESOURCE_QUOTA, {"metadata": {"name": "team"}, "spec": hard})


def test_a_quota_of_claimed_devices_is_told_by_name_and_numbers(begin: Any) -> None:
    claiming = begin(2)
    _limit(claiming, 8)
    claiming.ask(replicas=2)
    words = f"exceeded quota: team, requested: {QUOTA}=8, used: {QUOTA}=8, limited: {QUOTA}=8"
    for kind, status in (("Progressing", "False"), ("Degraded", "True")):
        told = condition(claiming.api, kind)
        assert (told["status"], told["reason"]) == (status, "PodsRefused")
        assert told["message"].endswith(f"resourceclaims.resource.k8s.io is forbidden: {words}")
    _limit(claiming, 16)
    claiming.cluster.advance(700)
    assert condition(claiming.api, "Ready")["status"] == "True"
    assert condition(claiming.api, "Degraded")["status"] == "False"


def test_the_claim_of_an_old_pod_is_room_in_the_quota_for_a_new_one(begin: Any) -> None:
    claiming = begin(2)
    claiming.ask()
    _limit(claiming, 8)
    claiming.ask(engine={"maxModelLen": 1024})
    claiming.cluster.advance(700)
    rollout = claiming.api.find(ATOM_DEPLOYMENT, "chat")["status"]["rollout"]
    assert rollout["strategy"] == "InPlace"
    assert f"quota team has no room for 8 {QUOTA} (8 of 8 used)" in rollout["reason"]
    assert condition(claiming.api, "Ready")["status"] == "True"


def test_no_old_pod_goes_where_the_quota_takes_no_claim_of_a_new_one(begin: Any) -> None:
    """More devices than the quota has in all, so that the template of claims is another."""
    claiming = begin(2)
    claiming.ask(parallelism={"tensor": 4})
    (before,) = (pod["metadata"]["name"] for pod in claiming.cluster.pods)
    _limit(claiming, 4)
    claiming.ask(parallelism={"tensor": 8})
    claiming.cluster.advance(700)
    names = {pod["metadata"]["name"] for pod in claiming.cluster.serving("chat")}
    assert names == {before}
    assert "exceeded quota: team" in condition(claiming.api, "Progressing")["message"]


def test_no_group_goes_where_the_quota_takes_no_claim_of_the_next_one(begin: Any) -> None:
    claiming = begin(2)
    claiming.ask(parallelism={"tensor": 8, "nodes": 2})
    _limit(claiming, 8)
    claiming.ask(parallelism={"tensor": 16, "nodes": 2})
    claiming.cluster.advance(700)
    assert len(claiming.cluster.serving("chat")) == 1
    told = condition(claiming.api, "Progressing")
    assert told["reason"] == "RolloutWaits"
    assert "exceeded quota: team" in told["message"]


@pytest.mark.parametrize("new_pods", ["have no node", "are refused"])
def test_an_old_pod_without_its_claim_has_the_cause_in_scheduled(begin: Any, new_pods: str) -> None:
    """It is no failure of the revision that is asked for, whose pods wait for something else."""
    claiming = begin(2)
    claiming.ask(parallelism={"tensor": 4})
    _limit(claiming, 6)
    claiming.ask(parallelism={"tensor": 4}, replicas=2)
    (quota,) = claiming.cluster.state.all(RESOURCE_QUOTA)
    quota["spec"]["hard"]["pods"] = "2" if new_pods == "are refused" else "3"
    elsewhere = {"spec": {"nodeSelector": {"shelf": "none"}}}
    changes = {"rollout": {"strategy": "Surge"}, "template": elsewhere}
    claiming.ask(parallelism={"tensor": 2}, replicas=2, **changes)
    told = condition(claiming.api, "Scheduled")["message"]
    assert "resourceclaims.resource.k8s.io is forbidden: exceeded quota: team" in told
    assert ("no eligible node" in told) == (new_pods == "have no node")
    by_quota = "requested: pods=1" in condition(claiming.api, "Progressing")["message"]
    assert by_quota == (new_pods == "are refused")
