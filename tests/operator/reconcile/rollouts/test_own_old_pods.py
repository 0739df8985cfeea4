"""A rollout never waits for what only its own old pods hold, whatever that is, and stops no more of
them than it must."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from atom_operator.constants import ANNOTATION_REVISION
from atom_operator.domain import ATOM_DEPLOYMENT, DEPLOYMENT, VOLUME_CLAIM, Manifest
from atom_operator.integration_values import Site
from atom_operator.kinds import AUTOSCALER
from tests.support.in_memory_cluster.cluster import InMemoryCluster
from tests.support.in_memory_cluster.kinds import RESOURCE_QUOTA
from tests.support.in_memory_cluster.operator_client import OperatorClient
from tests.support.in_memory_cluster.state import is_ready
from tests.support.operator.builders_operator import atom_deployment, condition, gpu_node

GIB = 2.0**30
HOST_PORT, APART = "hostPort", "podAntiAffinity"
GPU: dict[str, Any] = {
    "model": {"source": "hf://Qwen/Qwen3-8B"},
    "accelerator": {"type": "amd", "product": "MI300X"},
    "parallelism": {"tensor": 4},
}
CPU: dict[str, Any] = {}
PLENTY = {"amd.com/gpu": 64.0, "pods": 110.0, "cpu": 4000.0, "memory": 1e15}
PLENTY |= {"ephemeral-storage": 1e15, "hugepages-2Mi": 1e12}
APART_FROM_OTHERS = {
    "podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {
                "topologyKey": "kubernetes.io/hostname",
                "labelSelector": {"matchLabels": {"serving.atom.dev/deployment": "chat"}},
            }
        ]
    }
}


def engine(**fields: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "engine", **fields}]}}


def requests(**amounts: str) -> dict[str, Any]:
    return engine(resources={"requests": {k.replace("_", "-"): v for k, v in amounts.items()}})


PAGES = {"hugepages-2Mi": "4Gi"}
# What a node is short of, how a pod takes it, and how much of it one pod takes.
SHORT: dict[str, tuple[dict[str, Any], dict[str, Any], float]] = {
    "amd.com/gpu": (GPU, {}, 4),
    "memory": (GPU, requests(memory="900Gi"), 900 * GIB),
    "cpu": (GPU, requests(cpu="90"), 90),
    "ephemeral-storage": (GPU, requests(ephemeral_storage="300Gi"), 300 * GIB),
    "hugepages-2Mi": (GPU, engine(resources={"requests": PAGES, "limits": PAGES}), 4 * GIB),
    "pods": (GPU, {}, 1),
    HOST_PORT: (GPU, engine(ports=[{"containerPort": 8000, "hostPort": 8000}]), 1),
    APART: (GPU, {"spec": {"affinity": APART_FROM_OTHERS}}, 1),
}
ON_CPU = {name: (CPU, *SHORT[name][1:]) for name in SHORT if name != "amd.com/gpu"}
CASES = [
    *((name, *case) for name, case in SHORT.items()),
    *((name, *case) for name, case in ON_CPU.items()),
]
NAMES = [f"{name}{'' if case is GPU else ' of a cpu pod'}" for name, case, *_ in CASES]


class World:
    """`chat` on nodes that offer this, under a quota; `least_serving` and `strategies` are those
    since the last change."""

    def __init__(
        self,
        spec: dict[str, Any],
        offers: dict[str, dict[str, float]],
        quota: Mapping[str, float] | None = None,
        claims: Mapping[str, str] | None = None,
    ) -> None:
        self.cluster = InMemoryCluster(nodes=[node_of(*one) for one in offers.items()])
        self.api = self.cluster.api
        if quota is not None:
            self.cluster.state.create(RESOURCE_QUOTA, {"metadata": {"name": "one"}, "spec": {}})
            self.limit(quota)
        for name, mode in (claims or {}).items():
            manifest = {"metadata": {"name": name}, "spec": {"accessModes": [mode]}}
            self.cluster.state.create(VOLUME_CLAIM, manifest)
        # Which allows host ports.
        self.operator = OperatorClient(self.cluster, site=Site(template_forbidden=frozenset()))
        self.least_serving, self.strategies = 0, list[str]()
        self.cluster.clients.append(self.watch)
        self.api.create(ATOM_DEPLOYMENT, atom_deployment(**spec))

    def watch(self) -> None:
        serving = len(self.cluster.serving("chat"))
        self.least_serving = min(self.least_serving, serving)
        stored = self.api.objects.get((DEPLOYMENT, "default", "chat"))
        if stored is not None:
            self.strategies.append(strategy(stored["spec"]["strategy"]))

    def settle(self) -> bool:
        """Let time pass, and say whether all pods are the newest and ready."""
        self.cluster.advance(_WAIT_SECONDS)
        stored, pods = self.api.find(DEPLOYMENT, "chat"), self.cluster.pods
        wanted = stored["spec"]["template"]["metadata"]["annotations"][ANNOTATION_REVISION]
        revisions = {pod["metadata"]["annotations"][ANNOTATION_REVISION] for pod in pods}
        ready = sum(map(is_ready, pods))
        return revisions == {wanted} and ready == len(pods) == stored["spec"]["replicas"]

    def change(self, **spec: Any) -> bool:
        self.least_serving, self.strategies = len(self.cluster.serving("chat")), []
        self.api.change_spec(ATOM_DEPLOYMENT, "chat", **{**LENGTH, **spec})
        return self.settle()

    def offer(self, offers: dict[str, dict[str, float]]) -> None:
        self.api.nodes = [node_of(*one) for one in offers.items()]

    def limit(self, quota: Mapping[str, float]) -> None:
        hard = {name: f"{amount:.0f}" for name, amount in quota.items()}
        self.api.find(RESOURCE_QUOTA, "one")["spec"]["hard"] = hard

    @property
    def reason(self) -> str:
        return str(self.api.find(ATOM_DEPLOYMENT, "chat")["status"]["rollout"]["reason"])


LENGTH: dict[str, Any] = {"engine": {"maxModelLen": 1024}}
_WAIT_SECONDS = 900.0


def node_of(name: str, offered: Mapping[str, float]) -> Manifest:
    node = gpu_node(name)
    told = {resource: f"{amount:.0f}" for resource, amount in offered.items()}
    node["status"] |= {"allocatable": told, "capacity": told}
    return node


def strategy(rollout: Manifest) -> str:
    if rollout["type"] == "Recreate":
        return "Recreate"
    return "Surge" if rollout["rollingUpdate"]["maxSurge"] else "InPlace"


Served = Callable[..., World]


@pytest.fixture
def served() -> Iterator[Served]:
    """Makes `chat` with its replicas ready."""
    worlds: list[World] = []

    def serve(
        spec: dict[str, Any],
        offers: dict[str, dict[str, float]],
        replicas: int,
        overlay: dict[str, Any],
        **more: Any,
    ) -> World:
        worlds.append(World({**spec, "replicas": replicas, "template": overlay}, offers, **more))
        assert worlds[-1].settle()
        return worlds[-1]

    yield serve
    for world in worlds:
        world.operator.close()


@pytest.mark.sampled(4)
@pytest.mark.singles
@pytest.mark.parametrize(("name", "spec", "overlay", "each"), CASES, ids=NAMES)
@pytest.mark.parametrize(("nodes", "on_each"), [(1, 1), (3, 1), (1, 2)])
def test_full_nodes_are_rolled_in_place(
    served: Served,
    name: str,
    spec: dict[str, Any],
    overlay: dict[str, Any],
    each: float,
    nodes: int,
    on_each: int,
) -> None:
    on_each = 1 if name in (HOST_PORT, APART) else on_each
    full = {f"n{number}": {**PLENTY, name: each * on_each} for number in range(nodes)}
    world = served(spec, full, nodes * on_each, overlay)
    assert world.change(), condition(world.api, "Scheduled")
    assert world.strategies[-1] == "InPlace", world.reason
    assert world.least_serving >= nodes * on_each - 1, world.strategies


@pytest.mark.sampled(2)
@pytest.mark.rotated
@pytest.mark.parametrize(("name", "spec", "overlay", "each"), CASES, ids=NAMES)
def test_with_room_for_one_more_nothing_stops_serving(
    served: Served, name: str, spec: dict[str, Any], overlay: dict[str, Any], each: float
) -> None:
    roomy = {f"n{number}": {**PLENTY, name: each} for number in range(3)}
    world = served(spec, roomy, 2, overlay)
    assert world.change()
    assert set(world.strategies) == {"Surge"}
    assert world.least_serving == 2


@pytest.mark.sampled(2)
@pytest.mark.rotated
@pytest.mark.parametrize(
    ("name", "spec", "overlay", "each"),
    [case for case in CASES if case[0] not in (HOST_PORT, APART)],
)
def test_what_no_node_could_ever_take_stops_nothing(
    served: Served, name: str, spec: dict[str, Any], overlay: dict[str, Any], each: float
) -> None:
    world = served(spec, {"n0": {**PLENTY, name: each}}, 1, overlay)
    world.offer({"n0": {**PLENTY, name: 0}})  # its devices are unhealthy, its disk is smaller
    assert not world.change()
    assert world.least_serving == 1, world.reason


@pytest.mark.sampled(2)
@pytest.mark.rotated
@pytest.mark.parametrize(("name", "spec", "overlay", "each"), CASES, ids=NAMES)
def test_a_surge_that_was_asked_for_waits_until_there_is_room(
    served: Served, name: str, spec: dict[str, Any], overlay: dict[str, Any], each: float
) -> None:
    full = {"n0": {**PLENTY, name: each}}
    world = served(spec, full, 1, overlay)
    assert not world.change(rollout={"strategy": "Surge"})
    assert (set(world.strategies), world.least_serving) == ({"Surge"}, 1)
    assert "no room for a spare pod" in world.reason
    world.offer({**full, "n1": full["n0"]})
    assert world.settle()
    assert (set(world.strategies), world.least_serving) == ({"Surge"}, 1)
    assert world.reason == "spec.rollout.strategy is Surge"


QUOTAS: dict[str, tuple[dict[str, Any], dict[str, Any], float]] = {
    "pods": (CPU, {}, 1),
    "count/pods": (GPU, {}, 1),
    "requests.amd.com/gpu": (GPU, {}, 4),
    "requests.memory": (GPU, requests(memory="900Gi"), 900 * GIB),
    "memory": (CPU, requests(memory="9Gi"), 9 * GIB),
    "limits.memory": (CPU, engine(resources={"limits": {"memory": "9Gi"}}), 9 * GIB),
    "requests.cpu": (GPU, requests(cpu="90"), 90),
    "limits.cpu": (GPU, engine(resources={"limits": {"cpu": "90"}}), 90),
    "requests.ephemeral-storage": (CPU, requests(ephemeral_storage="300Gi"), 300 * GIB),
}


@pytest.mark.sampled(3)
@pytest.mark.singles
@pytest.mark.parametrize("name", QUOTAS)
@pytest.mark.parametrize("replicas", [1, 3])
def test_a_full_quota_is_rolled_in_place(served: Served, name: str, replicas: int) -> None:
    spec, overlay, each = QUOTAS[name]
    nodes = {f"n{number}": dict(PLENTY) for number in range(3)}
    world = served(spec, nodes, replicas, overlay, quota={name: each * replicas})
    assert world.change(), condition(world.api, "Progressing")
    assert world.strategies[-1] == "InPlace"
    assert "quota one has no room for" in world.reason
    assert world.least_serving >= replicas - 1
    assert condition(world.api, "Ready")["status"] == "True"


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", QUOTAS)
def test_a_surge_that_was_asked_for_waits_until_the_quota_has_room(
    served: Served, name: str
) -> None:
    spec, overlay, each = QUOTAS[name]
    world = served(spec, {"n0": dict(PLENTY)}, 1, overlay, quota={name: each})
    assert not world.change(rollout={"strategy": "Surge"})
    assert (set(world.strategies), world.least_serving) == ({"Surge"}, 1)
    assert "no room for a spare pod" in world.reason
    world.limit({name: each * 2})
    assert world.settle()
    assert world.least_serving == 1
    assert world.reason == "spec.rollout.strategy is Surge"


def test_a_quota_that_was_made_smaller_is_emptied_first(served: Served) -> None:
    nodes = {"n0": dict(PLENTY)}
    world = served(CPU, nodes, 2, requests(cpu="3"), quota={"requests.cpu": 6.0})
    world.limit({"requests.cpu": 4.0})
    assert world.change(template=requests(cpu="2"))
    assert "Recreate" in world.strategies


def test_a_quota_that_could_never_hold_the_new_pods_stops_none_that_serve(served: Served) -> None:
    quota = {"requests.cpu": 2.0}
    world = served(CPU, {"n0": dict(PLENTY)}, 2, requests(cpu="1"), quota=quota)
    assert not world.change(template=requests(cpu="3"))
    assert world.least_serving == 2
    assert "exceeded quota: one" in condition(world.api, "Degraded")["message"]


@pytest.mark.parametrize("mode", ["ReadWriteOnce", "ReadWriteOncePod"])
@pytest.mark.parametrize("spec", [CPU, GPU], ids=["cpu", "amd"])
def test_a_claim_of_the_overlay_that_a_spare_pod_cannot_mount_is_handed_on(
    served: Served, mode: str, spec: dict[str, Any]
) -> None:
    overlay = {"spec": {"volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "d"}}]}}
    nodes = {"n0": dict(PLENTY), "n1": dict(PLENTY)}
    world = served(spec, nodes, 1, overlay, claims={"d": mode})
    assert world.change()
    assert world.strategies[-1] == "InPlace"
    assert "claim d can be mounted" in world.reason


def test_a_refusal_keeps_the_quotas_words_through_the_rollback(served: Served) -> None:
    world = served(CPU, {"n0": dict(PLENTY)}, 1, {}, quota={"pods": 1.0})
    assert world.change(rollout={"strategy": "Surge", "progressDeadlineSeconds": 600})
    degraded = condition(world.api, "Degraded")
    assert degraded["reason"] == "RolledBack"
    assert "exceeded quota: one, requested: pods=1" in degraded["message"]
    assert world.least_serving == 1


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("name", "overlay", "each"),
    [(name, overlay, each) for name, (_, overlay, each) in SHORT.items()],
)
def test_an_autoscaler_is_bounded_by_whatever_nodes_run_out_of(
    served: Served, name: str, overlay: dict[str, Any], each: float
) -> None:
    scaling = {"minReplicas": 1, "maxReplicas": 32, "method": "HPA"}
    fits = 1 if name in (HOST_PORT, APART) else 2
    offers = {f"n{number}": {**PLENTY, name: each * fits} for number in range(3)}
    world = served({**GPU, "autoscaling": scaling}, offers, 1, overlay)
    (scaler,) = [item for key, item in world.api.objects.items() if key[0] == AUTOSCALER]
    assert scaler["spec"]["maxReplicas"] == 3 * fits
    limited = condition(world.api, "CapacityLimited")
    assert f"the nodes hold {3 * fits} replicas" in limited["message"]
