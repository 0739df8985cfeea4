"""spec.autoscaling.idle: pods that get no request sleep, and the status tells who does."""

from __future__ import annotations

from typing import Any

import pytest

from atom_operator.children.engine_container import engine_container
from atom_operator.domain import ATOM_DEPLOYMENT, DEPLOYMENT, SleepCounts
from atom_operator.kinds import AUTOSCALER, SCALED_OBJECT
from atom_operator.plan_report import facts
from atom_operator.validation.rules import validate
from tests.support.in_memory_cluster.rollouts import finish_rollout
from tests.support.operator.builders_operator import (
    KEY,
    cluster_with,
    condition,
    parsed,
    plan,
    pod,
    reconciler,
)
from tests.support.operator.fake_cluster import FakeCluster
from tests.support.operator.fake_engines import FakeEngines

IP = "10.0.0.7"
IDLE = {"maxReplicas": 1, "idle": "Sleep"}
GPU = {"type": "amd", "product": "MI300X"}


def arguments(**changes: Any) -> list[str]:
    return list(engine_container(plan(**changes))["args"])


async def serving(engines: FakeEngines, **changes: Any) -> FakeCluster:
    cluster, planned = cluster_with(**changes), plan(**changes).capacity.capacity
    assert planned is not None
    engines.capacities[IP] = planned
    await reconciler(cluster, engines=engines).reconcile(KEY)
    finish_rollout(cluster)
    cluster.put_pod(pod(cluster, podIP=IP))
    await reconciler(cluster, engines=engines).reconcile(KEY)
    return cluster


def test_the_engine_is_told_when_to_sleep() -> None:
    for changes, seconds in (({}, "600"), ({"idleSeconds": 30}, "30")):
        args = arguments(autoscaling={**IDLE, **changes})
        assert args[args.index("--sleep-idle-seconds") + 1] == seconds
        assert "--enable-sleep-mode" in args
    assert "--enable-sleep-mode" not in arguments(autoscaling={"maxReplicas": 1})


def test_the_pods_request_has_room_for_the_weights_that_sleep() -> None:
    def gib(**changes: Any) -> int:
        memory = engine_container(plan(accelerator=GPU, **changes))["resources"]["requests"]
        return int(str(memory["memory"]).removesuffix("Gi"))

    awake = plan(accelerator=GPU)
    assert awake.capacity.capacity is not None
    weights = awake.capacity.capacity.weights_bytes
    asleep = plan(accelerator=GPU, autoscaling=IDLE)
    assert asleep.pods.host_bytes == weights
    assert gib(autoscaling=IDLE) == gib() + -(-weights // 2**30)
    assert "idle" in dict(facts(asleep))
    copies = {"parallelism": {"data": 2}, "autoscaling": IDLE}
    assert plan(accelerator=GPU, **copies).pods.host_bytes == 2 * weights


async def test_no_autoscaler_is_made_where_pods_sleep_and_their_number_stays() -> None:
    cluster = await serving(FakeEngines(), autoscaling={**IDLE, "minReplicas": 1})
    assert cluster.names(AUTOSCALER) + cluster.names(SCALED_OBJECT) == []
    assert cluster.find(DEPLOYMENT, "chat")["spec"]["replicas"] == 1
    assert condition(cluster, "CapacityLimited")["reason"] == "Absent"


async def test_the_status_tells_who_sleeps_and_how_often_a_request_woke_one_up() -> None:
    engines = FakeEngines(sleeps={IP: SleepCounts(1, 0)})
    cluster = await serving(engines, autoscaling=IDLE)
    assert status(cluster) == {"asleepPods": 1, "wakes": 0}
    assert condition(cluster, "Ready")["status"] == "True"
    engines.sleeps[IP] = SleepCounts(0, 3)
    outcome = await reconciler(cluster, engines=engines).reconcile(KEY)
    assert status(cluster) == {"asleepPods": 0, "wakes": 3}
    assert outcome.requeue_after_seconds == 60
    del engines.sleeps[IP]  # it does not answer
    await reconciler(cluster, engines=engines).reconcile(KEY)
    assert status(cluster) == {"asleepPods": 0, "wakes": 3}
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", autoscaling=None)
    await reconciler(cluster, engines=engines).reconcile(KEY)
    assert status(cluster) == {"asleepPods": 0, "wakes": 3}, "the pods that serve still do"
    cluster.put_pod(pod(cluster, podIP=IP))  # of the new revision
    await reconciler(cluster, engines=engines).reconcile(KEY)
    assert status(cluster) is None


def status(cluster: FakeCluster) -> Any:
    return cluster.find(ATOM_DEPLOYMENT, "chat")["status"].get("sleep")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"parallelism": {"nodes": 2, "tensor": 2}}, "over several nodes"),
        ({"parallelism": {"data": 2, "expert": True}}, "share experts"),
        ({"engine": {"extraArgs": ["--api-server-count=2"]}}, "--api-server-count"),
        ({"autoscaling": {**IDLE, "minReplicas": 0, "activationQuery": "x"}}, "at least 1"),
    ],
)
def test_what_cannot_sleep_is_refused_by_name(changes: dict[str, Any], told: str) -> None:
    asked = {"accelerator": GPU, "autoscaling": IDLE, **changes}
    found = validate(parsed(**asked))
    assert [each.field for each in found] == ["spec.autoscaling.idle"]
    assert told in found[0].message
