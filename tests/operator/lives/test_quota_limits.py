"""A ResourceQuota that counts limits refuses pods whose containers state none: every kind of pod
that the operator makes has them then, and engines have them only then."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from atom_operator.constants import ANNOTATION_QUOTA_LIMITS, ENGINE_CONTAINER
from atom_operator.domain import ATOM_DEPLOYMENT, DEPLOYMENT, VOLUME_CLAIM, Manifest
from atom_operator.domain.resources import amount
from atom_operator.kinds import GATEWAY
from tests.operator.reconcile.preparation.test_model_sources import IMAGE
from tests.support.in_memory_cluster.cluster import InMemoryCluster
from tests.support.in_memory_cluster.kinds import LIMIT_RANGE, RESOURCE_QUOTA
from tests.support.in_memory_cluster.operator_client import OperatorClient
from tests.support.in_memory_cluster.state import is_ready
from tests.support.operator.builders_operator import atom_deployment, condition, gpu_node

COUNTED = ("cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory")
_GPUS: dict[str, Any] = {
    "model": {"source": "hf://Qwen/Qwen3-8B"},
    "accelerator": {"type": "amd", "product": "MI300X"},
}
_HUB: dict[str, Any] = {"source": "hf://Qwen/Qwen3-0.6B", "revision": "v1"}
_CPU = {"type": "cpu", "memory": "16Gi"}
SCENES: dict[str, dict[str, Any]] = {
    "engine on cores": {},
    "engine on devices": _GPUS,
    "copies on devices": {**_GPUS, "parallelism": {"data": 4}},
    "ranks on devices": {**_GPUS, "parallelism": {"tensor": 8}},
    "preflight": {**_GPUS, "accelerator": {**_GPUS["accelerator"], "preflight": True}},
    "model image": {"model": IMAGE},
    "groups": {**_GPUS, "parallelism": {"tensor": 16, "nodes": 2}},
    "weights that sleep": {
        **_GPUS,
        "autoscaling": {"minReplicas": 1, "maxReplicas": 1, "method": "HPA", "idle": "Sleep"},
    },
    "frontend": {**_GPUS, "frontend": {}},
    "picker": {**_GPUS, "gateway": {"prefixAware": True}},
    "weights": {"model": _HUB, "accelerator": _CPU, "cache": {"weights": {"claim": "models"}}},
    "inspection": {"model": {"source": "hf://acme/unknown"}, "accelerator": _CPU},
    "canary": {
        **_GPUS,
        "gateway": {"httpRoute": {"parentRefs": [{"name": "inference"}]}},
        "canary": {
            "change": {"engine": {"maxModelLen": 512}},
            "steps": [{"weight": 10, "seconds": 60}],
        },
    },
}


class Namespace:
    """An AtomDeployment `chat` in a namespace with a quota of plenty."""

    def __init__(self, *counted: str, **changes: Any) -> None:
        nodes = [gpu_node("a"), gpu_node("b")]
        plenty = {"cpu": "256", "memory": "4Ti", "pods": "110", "ephemeral-storage": "8Ti"}
        for node in nodes:
            node["status"]["allocatable"] |= plenty
        self.cluster = InMemoryCluster(nodes=nodes)
        claim = {"metadata": {"name": "models"}, "spec": {"accessModes": ["ReadWriteMany"]}}
        self.cluster.state.create(VOLUME_CLAIM, claim)
        gateway = {"metadata": {"name": "inference"}, "spec": {"gatewayClassName": "any"}}
        self.cluster.state.create(GATEWAY, gateway)
        self.operator = OperatorClient(self.cluster)
        if counted:
            self.count(*counted)
        self.cluster.api.create(ATOM_DEPLOYMENT, atom_deployment(**changes))
        self.cluster.advance(900)

    def count(self, *counted: str) -> None:
        """Make a quota that counts these resources, with room for everything."""
        hard = {name: "1000" if name.endswith("cpu") else "20Ti" for name in counted}
        made = {"metadata": {"name": "team"}, "spec": {"hard": hard}}
        self.cluster.state.create(RESOURCE_QUOTA, made)

    def ask(self, **changes: Any) -> None:
        self.cluster.api.change_spec(ATOM_DEPLOYMENT, "chat", **changes)

    @property
    def pods(self) -> list[Manifest]:
        return self.cluster.pods

    @property
    def workloads(self) -> list[Manifest]:
        api = self.cluster.api
        return [api.find(DEPLOYMENT, name) for name in api.names(DEPLOYMENT)]

    @property
    def engines(self) -> list[Manifest]:
        return [pod for pod in self.pods if _engine(pod)]

    @property
    def ready(self) -> set[str]:
        """The uids of the engine pods that serve."""
        return {pod["metadata"]["uid"] for pod in self.engines if is_ready(pod)}

    def said(self, kind: str) -> dict[str, Any]:
        return condition(self.cluster.api, kind)


def _engine(pod: Manifest) -> dict[str, Any]:
    containers = pod["spec"]["containers"]
    return next((dict(item) for item in containers if item["name"] == ENGINE_CONTAINER), {})


def _noted(pod: Manifest) -> str | None:
    found = (pod["metadata"].get("annotations") or {}).get(ANNOTATION_QUOTA_LIMITS)
    return None if found is None else str(found)


@pytest.fixture
def begin() -> Iterator[Any]:
    begun: list[Namespace] = []

    def _begin(*counted: str, **changes: Any) -> Namespace:
        begun.append(Namespace(*counted, **changes))
        return begun[-1]

    yield _begin
    for each in begun:
        each.operator.close()


@pytest.mark.sampled(6)
@pytest.mark.singles
@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("counted", [*((name,) for name in COUNTED), COUNTED], ids=" ".join)
def test_every_kind_of_pod_is_admitted_whatever_a_quota_counts(
    begin: Any, counted: tuple[str, ...], scene: str
) -> None:
    space = begin(*counted, **SCENES[scene])
    refused = [
        item["message"]
        for workload in space.workloads
        for item in (workload.get("status") or {}).get("conditions") or ()
        if item["type"] == "ReplicaFailure"
    ]
    assert refused == []
    assert space.said("Ready")["status"] == "True", space.said("Ready")["message"]
    assert space.engines
    wanted = {name.partition(".")[2] for name in counted if name.startswith("limits.")}
    for pod in space.engines:
        for container in [*pod["spec"]["containers"], *(pod["spec"].get("initContainers") or ())]:
            requests, limits = (container["resources"].get(side) for side in ("requests", "limits"))
            for name in wanted:
                assert amount(name, limits[name]) >= amount(name, requests[name])
        if not wanted:
            assert _noted(pod) is None
            assert "cpu" not in _engine(pod)["resources"].get("limits", {})
    before = {pod["metadata"]["uid"] for pod in space.engines}
    space.cluster.advance(900)
    assert {pod["metadata"]["uid"] for pod in space.engines} == before


LIMITS = ("limits.cpu", "limits.memory")
SERVING = {name: SCENES[name] for name in ("engine on cores", "ranks on devices", "groups")}


@pytest.mark.parametrize("scene", SERVING)
def test_pods_that_serve_are_not_replaced_for_a_quota_that_comes_later(
    begin: Any, scene: str
) -> None:
    space = begin(**SERVING[scene])
    before = space.ready
    assert before
    space.count(*LIMITS)
    space.cluster.advance(900)
    assert space.ready == before
    space.ask(engine={"maxModelLen": 512})
    space.cluster.advance(2700)
    assert len(space.ready) == len(before)
    assert not space.ready & before
    assert all(_noted(pod) for pod in space.engines)
    assert space.said("Ready")["status"] == "True"
    assert space.said("Degraded")["status"] == "False"


@pytest.mark.parametrize("scene", SERVING)
def test_pods_that_are_lost_under_a_later_quota_come_back_with_limits(
    begin: Any, scene: str
) -> None:
    space = begin(**SERVING[scene])
    space.count(*LIMITS)
    count = len(space.ready)
    for pod in space.engines:
        space.cluster.state.delete_pod(pod)
    space.cluster.advance(2700)
    assert len(space.ready) == count
    assert all(_noted(pod) for pod in space.engines)


def test_limits_of_an_overlay_are_kept(begin: Any) -> None:
    limits = {"cpu": "3", "memory": "90Gi"}
    engine = {"name": ENGINE_CONTAINER, "resources": {"limits": limits}}
    space = begin(*LIMITS, **_GPUS, template={"spec": {"containers": [engine]}})
    (pod,) = space.engines
    assert {name: _engine(pod)["resources"]["limits"][name] for name in limits} == limits
    assert _noted(pod) is None


def test_a_limit_is_never_below_the_request(begin: Any) -> None:
    requests = {"cpu": "90", "memory": "900Gi"}
    engine = {"name": ENGINE_CONTAINER, "resources": {"requests": requests}}
    space = begin(*LIMITS, **_GPUS, template={"spec": {"containers": [engine]}})
    (pod,) = space.engines
    assert {name: _engine(pod)["resources"]["limits"][name] for name in requests} == requests


def test_limits_that_a_limit_range_gives_are_enough(begin: Any) -> None:
    space = begin(**_GPUS)
    rule = {"type": "Container", "default": {"cpu": "3", "memory": "90Gi"}}
    made = {"metadata": {"name": "limits"}, "spec": {"limits": [rule]}}
    space.cluster.state.create(LIMIT_RANGE, made)
    space.count(*LIMITS)
    space.ask(engine={"maxModelLen": 512})
    space.cluster.advance(2700)
    (pod,) = space.engines
    assert _engine(pod)["resources"]["limits"]["cpu"] == "3"
    assert _noted(pod) is None


def test_a_container_of_the_users_is_left_to_them(begin: Any) -> None:
    """Its lack is told in the quota's words, and the engine's pods are not made again and again."""
    helper = {"name": "helper", "image": "registry.test/helper:1"}
    space = begin(*LIMITS, **_GPUS, template={"spec": {"containers": [helper]}})
    told = space.said("Progressing")
    assert (told["status"], told["reason"]) == ("False", "PodsRefused")
    assert "must specify limits.cpu for: helper; limits.memory for: helper" in told["message"]
    assert space.engines == []
    revision = space.cluster.api.find(ATOM_DEPLOYMENT, "chat")["status"]["revision"]
    space.cluster.advance(300)
    assert space.cluster.api.find(ATOM_DEPLOYMENT, "chat")["status"]["revision"] == revision
    resources = {side: {"cpu": "1", "memory": "1Gi"} for side in ("requests", "limits")}
    space.ask(template={"spec": {"containers": [{**helper, "resources": resources}]}})
    space.cluster.advance(900)
    assert space.said("Ready")["status"] == "True"
