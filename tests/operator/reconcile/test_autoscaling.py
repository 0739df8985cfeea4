"""An autoscaler beside the workload: who owns the replicas, how many may be, what it lacks."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from atom_operator.cluster.errors import TransientError
from atom_operator.cluster.fleet import FleetReader
from atom_operator.domain import (
    ATOM_DEPLOYMENT,
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    POD,
    Manifest,
    ObjectKey,
)
from atom_operator.integration_values import Site, SiteAddresses
from atom_operator.kinds import AUTOSCALER, SCALED_OBJECT
from atom_operator.reconcile.decider import Decider
from atom_operator.reconcile.reconciler import Reconciler
from atom_operator.settings import OperatorSettings
from tests.support.operator.builders_operator import (
    IMAGES,
    KEY,
    NOW,
    atom_deployment,
    cluster_with,
    gpu_node,
    gpu_pod,
    pod_of,
    reconciler,
)
from tests.support.operator.fake_cluster import FakeCluster
from tests.support.operator.fake_engines import FakeEngines

SITE = Site(addresses=SiteAddresses(prometheus="http://prometheus.test:9090"))
GPU = {"type": "amd", "product": "MI300X"}


def condition(cluster: FakeCluster, kind: str) -> Manifest:
    status = cluster.find(ATOM_DEPLOYMENT, "chat")["status"]
    return next(item for item in status["conditions"] if item["type"] == kind)


def scaled(**changes: Any) -> dict[str, Any]:
    return {"autoscaling": {"maxReplicas": 6, **changes}}


def ceiling(cluster: FakeCluster) -> int:
    """The most replicas that the autoscaler, of whichever kind, may ask for."""
    if cluster.names(AUTOSCALER):
        return int(cluster.find(AUTOSCALER, "chat")["spec"]["maxReplicas"])
    return int(cluster.find(SCALED_OBJECT, "chat")["spec"]["maxReplicaCount"])


async def settle(cluster: FakeCluster, passes: int = 3) -> None:
    """As many passes as the events of the first two would cause."""
    for _ in range(passes):
        await reconciler(cluster, site=SITE).reconcile(KEY)


async def test_the_autoscaler_comes_once_the_number_is_its_own() -> None:
    cluster = cluster_with(replicas=2, **scaled())
    await reconciler(cluster, site=SITE).reconcile(KEY)
    assert cluster.find(DEPLOYMENT, "chat")["spec"]["replicas"] == 2
    assert cluster.names(SCALED_OBJECT) == []
    await reconciler(cluster, site=SITE).reconcile(KEY)
    assert cluster.names(SCALED_OBJECT) == ["chat"]
    assert cluster.find(DEPLOYMENT, "chat")["spec"]["replicas"] == 2


async def test_giving_up_the_number_of_replicas_never_resets_it() -> None:
    cluster = cluster_with(replicas=4)
    await settle(cluster)
    cluster.find(ATOM_DEPLOYMENT, "chat")["spec"].update(scaled())
    await reconciler(cluster, site=SITE).reconcile(KEY)
    assert cluster.find(DEPLOYMENT, "chat")["spec"]["replicas"] == 4
    cluster.change_spec(DEPLOYMENT, "chat", replicas=6)  # the autoscaler
    await settle(cluster)
    assert cluster.find(DEPLOYMENT, "chat")["spec"]["replicas"] == 6
    assert sum(write.startswith("hand over") for write in cluster.writes) == 1


@pytest.mark.parametrize("fewest", [0, 1, 2])
async def test_a_workload_of_no_replicas_is_left_to_its_autoscaler_with_the_fewest(
    fewest: int,
) -> None:
    """It leaves no replicas alone, but for KEDA's own scaling to zero."""
    cluster = cluster_with(replicas=0)
    await settle(cluster)
    cluster.find(ATOM_DEPLOYMENT, "chat")["spec"].update(scaled(minReplicas=fewest))
    await settle(cluster, 4)
    assert cluster.find(DEPLOYMENT, "chat")["spec"]["replicas"] == fewest
    assert cluster.names(SCALED_OBJECT) == ["chat"]
    # What it or a user does to the number afterwards is not undone.
    cluster.change_spec(DEPLOYMENT, "chat", replicas=0)
    await settle(cluster)
    assert cluster.find(DEPLOYMENT, "chat")["spec"]["replicas"] == 0


@pytest.mark.parametrize("broken_write", range(1, 4))
async def test_a_crash_while_giving_up_the_replicas_loses_none(broken_write: int) -> None:
    cluster = cluster_with(replicas=4)
    await settle(cluster)
    cluster.find(ATOM_DEPLOYMENT, "chat")["spec"].update(scaled())
    cluster.fail_on(broken_write, TransientError("gone"))
    with pytest.raises(TransientError):
        await reconciler(cluster, site=SITE).reconcile(KEY)
    await settle(cluster)
    assert cluster.find(DEPLOYMENT, "chat")["spec"]["replicas"] == 4
    assert cluster.names(SCALED_OBJECT) == ["chat"]


async def test_putting_a_spoilt_workload_right_leaves_the_number_to_the_autoscaler() -> None:
    """Somebody's entry makes our apply invalid, so the whole object is put in its place."""
    cluster = cluster_with(replicas=2, **scaled())
    await settle(cluster)
    cluster.change_spec(DEPLOYMENT, "chat", replicas=5)  # the autoscaler
    cluster.spoilt_kinds.add(DEPLOYMENT)
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", engine={"maxModelLen": 1024})
    await settle(cluster)
    assert "replace Deployment/chat" in cluster.writes
    assert cluster.find(DEPLOYMENT, "chat")["spec"]["replicas"] == 5


async def test_putting_a_spoilt_autoscaler_right_leaves_its_controllers_finalizer() -> None:
    cluster = cluster_with(**scaled())
    await settle(cluster)
    cluster.find(SCALED_OBJECT, "chat")["metadata"]["finalizers"] = ["finalizer.keda.sh"]
    cluster.spoilt_kinds.add(SCALED_OBJECT)
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", **scaled(maxReplicas=4))
    await settle(cluster)
    stored = cluster.find(SCALED_OBJECT, "chat")
    assert stored["spec"]["maxReplicaCount"] == 4
    assert stored["metadata"]["finalizers"] == ["finalizer.keda.sh"]


async def test_without_autoscaling_the_spec_owns_the_number_again() -> None:
    cluster = cluster_with(replicas=2, **scaled())
    await settle(cluster)
    cluster.change_spec(DEPLOYMENT, "chat", replicas=5)
    del cluster.find(ATOM_DEPLOYMENT, "chat")["spec"]["autoscaling"]
    await settle(cluster)
    assert cluster.find(DEPLOYMENT, "chat")["spec"]["replicas"] == 2
    assert cluster.names(SCALED_OBJECT) == []


async def test_auto_means_keda_where_it_is_installed_and_else_an_hpa() -> None:
    cluster = cluster_with(**scaled())
    cluster.unserved_kinds.add(SCALED_OBJECT)
    await settle(cluster)
    assert cluster.names(AUTOSCALER) == ["chat"]
    cluster.unserved_kinds.clear()
    await settle(cluster)
    assert (cluster.names(AUTOSCALER), cluster.names(SCALED_OBJECT)) == ([], ["chat"])


@pytest.mark.parametrize(
    "asked", [{"method": "KEDA"}, {"minReplicas": 0, "activationQuery": "vector(1)"}]
)
async def test_what_only_keda_can_do_is_refused_without_it(asked: dict[str, Any]) -> None:
    cluster = cluster_with(**scaled(**asked))
    cluster.unserved_kinds.add(SCALED_OBJECT)
    outcome = await reconciler(cluster, site=SITE).reconcile(KEY)
    accepted = condition(cluster, "Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "ApiNotServed")
    assert "install KEDA" in accepted["message"]
    assert "minReplicas to at least 1" in accepted["message"]
    assert cluster.names(DEPLOYMENT) == []
    assert outcome.requeue_after_seconds is not None, "nobody announces that KEDA was installed"


async def test_keda_without_a_prometheus_is_refused() -> None:
    cluster = cluster_with(**scaled())
    await reconciler(cluster).reconcile(KEY)
    message = condition(cluster, "Accepted")["message"]
    assert "spec.autoscaling.prometheus" in message
    assert "autoscaling.prometheusAddress" in message


async def test_no_more_replicas_are_asked_for_than_the_nodes_hold() -> None:
    cluster = cluster_with(accelerator=GPU, **scaled(maxReplicas=12))
    cluster.nodes = [gpu_node("a", 4), gpu_node("b", 8, cordoned=True)]
    cluster.put_pod(gpu_pod("theirs", "a", 1))
    await settle(cluster)
    workload = cluster.find(DEPLOYMENT, "chat")
    cluster.put_pod(pod_of(workload, "ours-0", "a"))
    cluster.put_pod(pod_of(workload, "ours-1", "b"))  # it stays, but no other goes there
    await settle(cluster)
    # On a: 4 less the 1 of somebody else; on b the one that is there.
    assert cluster.find(SCALED_OBJECT, "chat")["spec"]["maxReplicaCount"] == 4
    limited = condition(cluster, "CapacityLimited")
    assert (limited["status"], limited["reason"]) == ("True", "TooFewAccelerators")
    assert (
        "maxReplicas is 12; the nodes hold 4 replicas (1 amd.com/gpu per pod)"
        in (limited["message"])
    )
    assert "a 3, b 1" in limited["message"]
    assert "8 more would only wait" in limited["message"]


@pytest.mark.parametrize("method", ["HPA", "KEDA"])
@pytest.mark.parametrize("devices", [1, 4, 8])
async def test_the_ceiling_stands_while_replicas_come_and_go(method: str, devices: int) -> None:
    """Two nodes of eight devices: whoever has a place and whoever may get one are all counted."""
    most = 2 * (8 // devices)
    cluster = cluster_with(
        model={"source": "hf://Qwen/Qwen3-8B"},
        accelerator=GPU,
        parallelism={"tensor": devices},
        **scaled(maxReplicas=99, method=method),
    )
    cluster.unserved_kinds |= {SCALED_OBJECT} if method == "HPA" else set()
    cluster.nodes = [gpu_node("a", 8), gpu_node("b", 8)]
    await settle(cluster)
    for wanted in (1, most, most - 1, 1, most, 0):
        cluster.change_spec(DEPLOYMENT, "chat", replicas=wanted)
        for number in range(most):
            cluster.objects.pop((POD, "default", f"chat-{number}"), None)
        for number in range(wanted):
            made = pod_of(cluster.find(DEPLOYMENT, "chat"), f"chat-{number}", "ab"[number % 2])
            cluster.put_pod(made)
        await settle(cluster, 1)
        assert ceiling(cluster) == most, f"{wanted} replicas serve"


async def test_a_replica_that_ends_still_holds_its_place() -> None:
    cluster = cluster_with(accelerator=GPU, **scaled(maxReplicas=12))
    cluster.nodes = [gpu_node("a", 2)]
    await settle(cluster)
    leaving = pod_of(cluster.find(DEPLOYMENT, "chat"), "chat-1", "a")
    leaving["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z"
    cluster.put_pod(leaving)
    await settle(cluster, 1)
    assert ceiling(cluster) == 2, "the replica that comes next has its devices"


async def test_what_is_known_late_of_other_pods_stops_no_replica() -> None:
    """The list of placed pods, a minute old, shows a neighbour where replicas run by now."""
    cluster, time = cluster_with(accelerator=GPU, replicas=2), [0.0]
    cluster.nodes = [gpu_node("a", 2)]
    settings = OperatorSettings(engine_images=IMAGES, site=SITE)
    fleet = FleetReader(cluster, lambda: time[0])
    decider = Decider(cluster, fleet, FakeEngines(), settings)
    worker = Reconciler(cluster, FakeEngines(), decider, clock=lambda: NOW)
    cluster.put_pod(gpu_pod("theirs", "a", 1))
    await fleet.pods()
    del cluster.objects[POD, "default", "theirs"]
    await worker.reconcile(KEY)
    for number in range(2):
        cluster.put_pod(pod_of(cluster.find(DEPLOYMENT, "chat"), f"chat-{number}", "a"))
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", **scaled(maxReplicas=9))
    time[0] = 30.0
    for _ in range(3):
        await worker.reconcile(KEY)
    assert ceiling(cluster) == 2


async def test_pods_elsewhere_change_no_status_while_the_nodes_hold_enough() -> None:
    cluster = cluster_with(accelerator=GPU, **scaled(maxReplicas=4))
    cluster.nodes = [gpu_node("a", 8)]
    await settle(cluster)
    before = condition(cluster, "CapacityLimited")
    assert (before["status"], before["reason"]) == ("False", "EnoughAccelerators")
    cluster.put_pod(gpu_pod("theirs", "a", 2))
    await settle(cluster)
    assert condition(cluster, "CapacityLimited") == before


async def test_the_first_replicas_are_no_more_than_the_nodes_hold() -> None:
    cluster = cluster_with(accelerator=GPU, replicas=5, **scaled())
    cluster.nodes = [gpu_node("a", 2)]
    await reconciler(cluster, site=SITE).reconcile(KEY)
    assert cluster.find(DEPLOYMENT, "chat")["spec"]["replicas"] == 2


async def test_a_new_node_raises_the_limit_without_an_event() -> None:
    cluster = cluster_with(accelerator=GPU, **scaled(maxReplicas=12))
    cluster.nodes = [gpu_node("a", 4)]
    await settle(cluster)
    assert cluster.find(SCALED_OBJECT, "chat")["spec"]["maxReplicaCount"] == 4
    cluster.nodes.append(gpu_node("b", 8))
    outcome = await reconciler(cluster, site=SITE).reconcile(KEY)
    assert cluster.find(SCALED_OBJECT, "chat")["spec"]["maxReplicaCount"] == 12
    assert condition(cluster, "CapacityLimited")["reason"] == "EnoughAccelerators"
    assert outcome.requeue_after_seconds == 60


async def test_an_unknown_fleet_leaves_the_limit_as_asked() -> None:
    cluster = cluster_with(accelerator=GPU, **scaled())
    cluster.nodes = None
    await settle(cluster)
    assert cluster.find(SCALED_OBJECT, "chat")["spec"]["maxReplicaCount"] == 6
    assert condition(cluster, "CapacityLimited")["status"] == "Unknown"


async def test_a_minimum_above_the_limit_is_kept_valid() -> None:
    cluster = cluster_with(accelerator=GPU, **scaled(minReplicas=3))
    cluster.nodes = [gpu_node("a", 1)]
    await settle(cluster)
    spec = cluster.find(SCALED_OBJECT, "chat")["spec"]
    assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (3, 3)
    assert cluster.find(DEPLOYMENT, "chat")["spec"]["replicas"] == 3
    told = condition(cluster, "CapacityLimited")["message"]
    assert "minReplicas is 3, so 3 are the most all the same, and 2 of them would wait" in told


async def test_an_autoscaler_that_cannot_work_is_said() -> None:
    cluster = cluster_with(**scaled(method="HPA"))
    await settle(cluster)
    cluster.find(AUTOSCALER, "chat")["status"] = {
        "conditions": [
            {"type": "AbleToScale", "status": "True"},
            {
                "type": "ScalingActive",
                "status": "False",
                "reason": "FailedGetPodsMetric",
                "message": "no custom metrics API",
            },
        ]
    }
    await settle(cluster, 1)
    found = condition(cluster, "IntegrationsReady")
    assert (found["status"], found["reason"]) == ("False", "AutoscalerNotReady")
    assert "no custom metrics API" in found["message"]


async def test_a_workload_that_may_grow_has_a_disruption_budget() -> None:
    cluster = cluster_with(replicas=1, **scaled())
    await settle(cluster)
    assert cluster.names(DISRUPTION_BUDGET) == ["chat"]


async def test_a_trigger_that_fails_is_said_though_keda_calls_itself_ready() -> None:
    cluster = cluster_with(**scaled())
    await settle(cluster)
    # As KEDA v2.18 writes it while Prometheus answers 500.
    cluster.find(SCALED_OBJECT, "chat")["status"] = {
        "conditions": [
            {"type": "Ready", "status": "True", "reason": "ScaledObjectReady", "message": "-"},
            {"type": "Fallback", "status": "True", "reason": "FallbackExists", "message": "-"},
        ],
        "health": {
            "s0-prometheus": {"numberOfFailures": 7, "status": "Failing"},
            "s1-prometheus": {"numberOfFailures": 0, "status": "Happy"},
            "s9-prometheus": {"numberOfFailures": 7, "status": "Failing"},  # of a former spec
        },
    }
    await settle(cluster, 1)
    found = condition(cluster, "IntegrationsReady")
    assert (found["status"], found["reason"]) == ("False", "AutoscalerNotReady")
    assert "no value for running, s9-prometheus;" in found["message"]


async def test_a_fallback_that_outlives_its_cause_is_no_failure() -> None:
    """At zero replicas nothing asks the trigger, so KEDA leaves the condition as it was."""
    cluster = cluster_with(**scaled())
    await settle(cluster)
    cluster.find(SCALED_OBJECT, "chat")["status"] = {
        "conditions": [{"type": "Fallback", "status": "True", "reason": "x", "message": "-"}],
        "health": {"s0-prometheus": {"numberOfFailures": 0, "status": "Happy"}},
    }
    await settle(cluster, 1)
    assert condition(cluster, "IntegrationsReady")["status"] == "True"


async def test_on_the_cpu_no_accelerator_limits_the_autoscaler() -> None:
    cluster = cluster_with(**scaled())
    await settle(cluster)
    limited = condition(cluster, "CapacityLimited")
    assert (limited["status"], limited["reason"]) == ("False", "NoAcceleratorsNeeded")


async def test_many_autoscalers_cost_one_look_at_the_cluster_in_a_minute() -> None:
    """Ten minutes of six autoscaled models: every pod of the cluster was listed 120 times."""
    cluster, time = FakeCluster(), [0.0]
    keys = [ObjectKey("default", f"model-{number}") for number in range(6)]
    for key in keys:
        cluster.create(
            ATOM_DEPLOYMENT, atom_deployment(key.name, accelerator=GPU, **scaled(method="HPA"))
        )
    cluster.nodes = [gpu_node("a", 8)]
    settings = OperatorSettings(engine_images=IMAGES, site=SITE)
    fleet = FleetReader(cluster, lambda: time[0])
    worker = Reconciler(
        cluster,
        FakeEngines(),
        Decider(cluster, fleet, FakeEngines(), settings),
        clock=lambda: NOW + timedelta(seconds=time[0]),
    )
    due = dict.fromkeys(keys, 0.0)
    while time[0] < 600:
        for key in keys:
            if due[key] <= time[0]:
                again = (await worker.reconcile(key)).requeue_after_seconds
                assert again is not None, "nothing else tells of a node's device that comes free"
                due[key] = time[0] + again
        time[0] += 1
    assert cluster.pod_reads <= 11
    assert cluster.node_reads <= 11


async def test_an_autoscaler_that_has_not_judged_itself_is_not_called_well() -> None:
    cluster = cluster_with(**scaled())
    await settle(cluster)
    cluster.find(SCALED_OBJECT, "chat")["status"] = {
        "conditions": [{"type": "Ready", "status": "Unknown"}]
    }
    await settle(cluster, 1)
    found = condition(cluster, "IntegrationsReady")
    assert (found["status"], found["reason"]) == ("Unknown", "AutoscalerNotReady")
