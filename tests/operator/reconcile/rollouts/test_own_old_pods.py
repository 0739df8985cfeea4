"""A rollout never waits for what only its own old pods hold, whatever that is, and stops no more of
them than it must."""

from __future__ import annotations

from typing import Any

import pytest

from atom_operator.domain import ATOM_DEPLOYMENT, DEPLOYMENT, VOLUME_CLAIM, Manifest
from atom_operator.kinds import AUTOSCALER
from tests.support.operator.builders_operator import cluster_with, condition
from tests.support.operator.fake_cluster import FakeCluster
from tests.support.operator.rolling_world import APART, HOST_PORT, RollingWorld, node_of

GIB = 2.0**30
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


async def served(
    spec: dict[str, Any],
    offers: dict[str, dict[str, float]],
    replicas: int,
    overlay: dict[str, Any],
    **more: Any,
) -> RollingWorld:
    """`chat` with its replicas ready on nodes that offer this."""
    cluster = cluster_with(replicas=replicas, template=overlay, **spec)
    cluster.nodes = [node_of(name, offered) for name, offered in offers.items()]
    world = RollingWorld(cluster, offers, **more)
    assert await world.settle()
    world.least_serving, world.strategies = replicas, []
    return world


async def change(world: RollingWorld, **more: Any) -> bool:
    world.cluster.change_spec(ATOM_DEPLOYMENT, "chat", engine={"maxModelLen": 1024}, **more)
    return await world.settle()


def reason(cluster: FakeCluster) -> str:
    return str(cluster.find(ATOM_DEPLOYMENT, "chat")["status"]["rollout"]["reason"])


@pytest.mark.parametrize(("name", "spec", "overlay", "each"), CASES, ids=NAMES)
@pytest.mark.parametrize("nodes", [1, 3])
@pytest.mark.parametrize("on_each", [1, 2])
async def test_full_nodes_are_rolled_in_place(
    name: str, spec: dict[str, Any], overlay: dict[str, Any], each: float, nodes: int, on_each: int
) -> None:
    on_each = 1 if name in (HOST_PORT, APART) else on_each
    full = {f"n{number}": {**PLENTY, name: each * on_each} for number in range(nodes)}
    world = await served(spec, full, nodes * on_each, overlay)
    assert await change(world), condition(world.cluster, "Scheduled")
    assert world.strategies[-1] == "InPlace", reason(world.cluster)
    assert world.least_serving >= nodes * on_each - 1, world.strategies


@pytest.mark.parametrize(("name", "spec", "overlay", "each"), CASES, ids=NAMES)
async def test_with_room_for_one_more_nothing_stops_serving(
    name: str, spec: dict[str, Any], overlay: dict[str, Any], each: float
) -> None:
    roomy = {f"n{number}": {**PLENTY, name: each} for number in range(3)}
    world = await served(spec, roomy, 2, overlay)
    assert await change(world)
    assert set(world.strategies) == {"Surge"}
    assert world.least_serving == 2


@pytest.mark.parametrize(
    ("name", "spec", "overlay", "each"),
    [case for case in CASES if case[0] not in (HOST_PORT, APART)],
)
async def test_what_no_node_could_ever_take_stops_nothing(
    name: str, spec: dict[str, Any], overlay: dict[str, Any], each: float
) -> None:
    world = await served(spec, {"n0": {**PLENTY, name: each}}, 1, overlay)
    world.offers = {"n0": {**PLENTY, name: 0}}  # its devices are unhealthy, its disk is smaller
    world.cluster.nodes = [node_of("n0", world.offers["n0"])]
    assert not await change(world)
    assert world.least_serving == 1, reason(world.cluster)


@pytest.mark.parametrize(("name", "spec", "overlay", "each"), CASES, ids=NAMES)
async def test_a_surge_that_was_asked_for_waits_until_there_is_room(
    name: str, spec: dict[str, Any], overlay: dict[str, Any], each: float
) -> None:
    full = {"n0": {**PLENTY, name: each}}
    world = await served(spec, full, 1, overlay)
    assert not await change(world, rollout={"strategy": "Surge"})
    assert (set(world.strategies), world.least_serving) == ({"Surge"}, 1)
    assert "no room for a spare pod" in reason(world.cluster)
    world.offers["n1"] = dict(full["n0"])
    world.cluster.nodes = [node_of(node, offered) for node, offered in world.offers.items()]
    assert await world.settle()
    assert (set(world.strategies), world.least_serving) == ({"Surge"}, 1)
    assert reason(world.cluster) == "spec.rollout.strategy is Surge"


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


@pytest.mark.parametrize("name", QUOTAS)
@pytest.mark.parametrize("replicas", [1, 3])
async def test_a_full_quota_is_rolled_in_place(name: str, replicas: int) -> None:
    spec, overlay, each = QUOTAS[name]
    nodes = {f"n{number}": dict(PLENTY) for number in range(3)}
    world = await served(spec, nodes, replicas, overlay, quota={name: each * replicas})
    assert await change(world), condition(world.cluster, "Progressing")
    assert world.strategies[-1] == "InPlace"
    assert "quota one has no room for" in reason(world.cluster)
    assert world.least_serving >= replicas - 1
    assert condition(world.cluster, "Ready")["status"] == "True"


@pytest.mark.parametrize("name", QUOTAS)
async def test_a_surge_that_was_asked_for_waits_until_the_quota_has_room(name: str) -> None:
    spec, overlay, each = QUOTAS[name]
    world = await served(spec, {"n0": dict(PLENTY)}, 1, overlay, quota={name: each})
    assert not await change(world, rollout={"strategy": "Surge"})
    assert (set(world.strategies), world.least_serving) == ({"Surge"}, 1)
    assert "no room for a spare pod" in reason(world.cluster)
    world.quota = {name: each * 2}
    assert await world.settle()
    assert world.least_serving == 1
    assert reason(world.cluster) == "spec.rollout.strategy is Surge"


async def test_a_quota_that_was_made_smaller_is_emptied_first() -> None:
    world = await served(
        CPU, {"n0": dict(PLENTY)}, 2, requests(cpu="3"), quota={"requests.cpu": 6.0}
    )
    world.quota = {"requests.cpu": 4.0}
    world.cluster.change_spec(ATOM_DEPLOYMENT, "chat", template=requests(cpu="2"))
    assert await change(world)
    assert "Recreate" in world.strategies


async def test_a_quota_that_could_never_hold_the_new_pods_stops_none_that_serve() -> None:
    quota = {"requests.cpu": 2.0}
    world = await served(CPU, {"n0": dict(PLENTY)}, 2, requests(cpu="1"), quota=quota)
    world.cluster.change_spec(ATOM_DEPLOYMENT, "chat", template=requests(cpu="3"))
    assert not await change(world)
    assert world.least_serving == 2
    assert "exceeded quota: one" in condition(world.cluster, "Degraded")["message"]


@pytest.mark.parametrize("mode", ["ReadWriteOnce", "ReadWriteOncePod"])
@pytest.mark.parametrize("spec", [CPU, GPU], ids=["cpu", "amd"])
async def test_a_claim_of_the_overlay_that_a_spare_pod_cannot_mount_is_handed_on(
    mode: str, spec: dict[str, Any]
) -> None:
    overlay = {"spec": {"volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "d"}}]}}
    cluster = cluster_with(template=overlay, **spec)
    cluster.create(VOLUME_CLAIM, _claim("d", mode))
    nodes = {"n0": dict(PLENTY), "n1": dict(PLENTY)}
    cluster.nodes = [node_of(name, offered) for name, offered in nodes.items()]
    world = RollingWorld(cluster, nodes, one_pod_claim="d")
    assert await world.settle()
    assert await change(world)
    assert world.strategies[-1] == "InPlace"
    assert "claim d can be mounted" in reason(cluster)


def _claim(name: str, mode: str) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"accessModes": [mode]},
    }


async def test_a_refusal_keeps_the_quotas_words_through_the_rollback() -> None:
    rollout = {"strategy": "Surge"}
    world = await served(CPU, {"n0": dict(PLENTY)}, 1, {}, quota={"pods": 1.0})
    world.cluster.change_spec(ATOM_DEPLOYMENT, "chat", rollout=rollout)
    assert not await change(world)
    _pass_the_deadline(world.cluster)
    assert await world.settle()
    degraded = condition(world.cluster, "Degraded")
    assert degraded["reason"] == "RolledBack"
    assert "exceeded quota: one, requested: pods=1" in degraded["message"]


def _pass_the_deadline(cluster: FakeCluster) -> None:
    passed = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}
    stored = cluster.find(DEPLOYMENT, "chat")
    stored["status"]["conditions"].append({**passed, "message": "has timed out progressing"})


@pytest.mark.parametrize(
    ("name", "overlay", "each"),
    [(name, overlay, each) for name, (_, overlay, each) in SHORT.items()],
)
async def test_an_autoscaler_is_bounded_by_whatever_nodes_run_out_of(
    name: str, overlay: dict[str, Any], each: float
) -> None:
    scaling = {"minReplicas": 1, "maxReplicas": 32, "method": "HPA"}
    fits = 1 if name in (HOST_PORT, APART) else 2
    offers = {f"n{number}": {**PLENTY, name: each * fits} for number in range(3)}
    world = await served({**GPU, "autoscaling": scaling}, offers, 1, overlay)
    (scaler,) = [item for key, item in world.cluster.objects.items() if key[0] == AUTOSCALER]
    assert scaler["spec"]["maxReplicas"] == 3 * fits
    limited = condition(world.cluster, "CapacityLimited")
    assert f"the nodes hold {3 * fits} replicas" in limited["message"]
