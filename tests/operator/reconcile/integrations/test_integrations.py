"""Objects of other systems: rendered where served, pruned when no longer asked for, never in the
way of serving."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from atom_operator.cluster.optional import OptionalKinds
from atom_operator.domain import ATOM_DEPLOYMENT, CONFIG_MAP, DEPLOYMENT, Manifest, ObjectKey
from atom_operator.integration_values import Site
from atom_operator.kinds import (
    GATEWAY,
    HTTP_ROUTE,
    INFERENCE_POOL,
    LEADER_WORKER_SET,
    NETWORK_POLICY,
    OPTIONAL_KINDS,
    POD_MONITOR,
    PROMETHEUS_RULE,
    Kind,
)
from tests.support.cluster.gateways import a_gateway, take_up_route
from tests.support.operator.builders_operator import (
    KEY,
    cluster_with,
    gpu_node,
    gpu_pod,
    reconciler,
)
from tests.support.operator.fake_cluster import FakeCluster

ASKED: dict[str, Any] = {
    "gateway": {
        "inferencePool": {"name": "picker"},
        "httpRoute": {"parentRefs": [{"name": "gate"}]},
    },
    "monitoring": {"podMonitor": {}, "alerts": {}, "dashboard": {}},
    "networkPolicy": {},
}
RENDERED = (INFERENCE_POOL, HTTP_ROUTE, POD_MONITOR, PROMETHEUS_RULE, NETWORK_POLICY)
BIG: dict[str, Any] = {
    "model": {"source": "hf://meta-llama/Llama-3.3-70B-Instruct"},
    "accelerator": {"type": "amd", "product": "MI300X"},
    "parallelism": {"tensor": 16, "nodes": 2},
}
MULTI_NODE = Site(engine_tensor_parallel=16, engine_multi_node=True)


def condition(cluster: FakeCluster, kind: str) -> Manifest:
    status = cluster.find(ATOM_DEPLOYMENT, "chat")["status"]
    return next(item for item in status["conditions"] if item["type"] == kind)


async def test_everything_that_is_asked_for_is_rendered_and_said() -> None:
    cluster = cluster_with(**ASKED)
    cluster.create(GATEWAY, a_gateway())
    await reconciler(cluster).reconcile(KEY)
    assert [cluster.names(kind) for kind in RENDERED] == [["chat"]] * len(RENDERED)
    take_up_route(cluster)
    await reconciler(cluster).reconcile(KEY)
    assert cluster.names(CONFIG_MAP) == ["chat-dashboard", "chat-plan"]
    ready = condition(cluster, "IntegrationsReady")
    assert (ready["status"], ready["reason"]) == ("True", "AllRendered")


async def test_what_is_no_longer_asked_for_is_removed() -> None:
    cluster = cluster_with(**ASKED)
    worker = reconciler(cluster)
    await worker.reconcile(KEY)
    for field in ASKED:
        del cluster.find(ATOM_DEPLOYMENT, "chat")["spec"][field]
    await worker.reconcile(KEY)
    assert [cluster.names(kind) for kind in RENDERED] == [[]] * len(RENDERED)
    assert cluster.names(CONFIG_MAP) == ["chat-plan"]


async def test_an_operator_that_restarts_removes_what_its_predecessor_left() -> None:
    cluster = cluster_with(**ASKED)
    await reconciler(cluster).reconcile(KEY)
    for field in ASKED:
        del cluster.find(ATOM_DEPLOYMENT, "chat")["spec"][field]
    await reconciler(cluster).reconcile(KEY)  # another process: it remembers nothing
    assert [cluster.names(kind) for kind in RENDERED] == [[]] * len(RENDERED)


async def test_a_quiet_atomdeployment_costs_no_look_at_optional_kinds() -> None:
    cluster = cluster_with()
    worker = reconciler(cluster)
    await worker.reconcile(KEY)
    assert cluster.listed == list(OPTIONAL_KINDS)
    cluster.listed.clear()
    await worker.reconcile(KEY)
    assert cluster.listed == []


async def test_everything_is_looked_for_again_after_an_hour_and_in_a_new_term() -> None:
    now = [0.0]
    optional = OptionalKinds(monotonic=lambda: now[0])
    for expected in (OPTIONAL_KINDS, ()):
        look = await optional.begin(KEY, frozenset())
        assert look.kinds == expected
        optional.remember(KEY, look, ())
        now[0] += 1800
    now[0] += 1
    assert (await optional.begin(KEY, frozenset())).kinds == OPTIONAL_KINDS
    # That pass was cut off: nothing is known again.
    look = await optional.begin(KEY, frozenset())
    assert look.kinds == OPTIONAL_KINDS
    optional.remember(KEY, look, ())
    optional.forget_all()
    assert (await optional.begin(KEY, frozenset())).kinds == OPTIONAL_KINDS


class Holders:
    """Who holds objects of which kind, and the log of the questions."""

    def __init__(self, held: dict[Kind, set[ObjectKey]]) -> None:
        self.held = held
        self.asked: list[Kind] = []

    async def __call__(self, kind: Kind) -> set[ObjectKey]:
        self.asked.append(kind)
        return self.held.get(kind, set())


async def test_who_holds_what_is_asked_once_for_all_first_looks() -> None:
    holders = Holders({HTTP_ROUTE: {KEY}})
    optional = OptionalKinds(holders, lambda: 0.0)
    assert (await optional.begin(KEY, frozenset())).kinds == (HTTP_ROUTE,)
    for number in range(5):
        other = ObjectKey("default", f"other-{number}")
        assert (await optional.begin(other, {POD_MONITOR})).kinds == (POD_MONITOR,)
    assert holders.asked == list(OPTIONAL_KINDS)


async def test_a_pass_that_was_cut_off_may_have_left_any_kind() -> None:
    optional = OptionalKinds(Holders({}), lambda: 0.0)
    assert (await optional.begin(KEY, {HTTP_ROUTE})).kinds == (HTTP_ROUTE,)
    look = await optional.begin(KEY, frozenset())  # and the one before was not remembered
    assert look.kinds == OPTIONAL_KINDS
    optional.remember(KEY, look, ())
    assert (await optional.begin(KEY, frozenset())).kinds == ()


async def test_a_new_term_asks_anew_who_holds_what() -> None:
    holders = Holders({})
    optional = OptionalKinds(holders, lambda: 0.0)
    await optional.begin(KEY, frozenset())
    holders.held = {POD_MONITOR: {KEY}}  # made by a replica that led meanwhile
    optional.forget_all()
    assert (await optional.begin(KEY, frozenset())).kinds == (POD_MONITOR,)


@pytest.mark.parametrize("kind", [INFERENCE_POOL, HTTP_ROUTE, POD_MONITOR, PROMETHEUS_RULE])
async def test_a_missing_crd_is_said_and_serving_goes_on(kind: Kind) -> None:
    cluster = cluster_with(**ASKED)
    cluster.unserved_kinds.add(kind)
    outcome = await reconciler(cluster).reconcile(KEY)
    assert cluster.names(kind) == []
    assert cluster.names(DEPLOYMENT) == ["chat"]
    found = condition(cluster, "IntegrationsReady")
    assert (found["status"], found["reason"]) == ("False", "ApiNotServed")
    assert kind.kind in found["message"]
    assert "install" in found["message"]
    assert outcome.requeue_after_seconds is not None
    cluster.unserved_kinds.clear()
    cluster.create(GATEWAY, a_gateway())
    await reconciler(cluster).reconcile(KEY)
    assert cluster.names(kind) == ["chat"]
    take_up_route(cluster)
    await reconciler(cluster).reconcile(KEY)
    assert condition(cluster, "IntegrationsReady")["status"] == "True"


async def test_a_refused_monitor_stops_nothing() -> None:
    cluster = cluster_with(**ASKED)
    cluster.refused_kinds[POD_MONITOR] = "podmonitors is forbidden"
    await reconciler(cluster).reconcile(KEY)
    assert cluster.names(DEPLOYMENT) == ["chat"]
    assert cluster.names(PROMETHEUS_RULE) == ["chat"]
    found = condition(cluster, "IntegrationsReady")
    assert (found["status"], found["reason"]) == ("False", "ApplyRefused")
    assert condition(cluster, "Degraded")["status"] == "False"


async def test_no_route_leads_to_a_pool_that_was_refused() -> None:
    cluster = cluster_with(**ASKED)
    cluster.refused_kinds[INFERENCE_POOL] = "field not declared in schema"
    await reconciler(cluster).reconcile(KEY)
    assert cluster.names(HTTP_ROUTE) == []
    assert "field not declared" in condition(cluster, "IntegrationsReady")["message"]
    cluster.refused_kinds.clear()
    await reconciler(cluster).reconcile(KEY)
    assert cluster.names(HTTP_ROUTE) == ["chat"]


async def test_a_route_to_the_service_stays_while_the_pool_is_refused() -> None:
    cluster = cluster_with(gateway={"httpRoute": ASKED["gateway"]["httpRoute"]})
    await reconciler(cluster).reconcile(KEY)
    before = copy.deepcopy(cluster.find(HTTP_ROUTE, "chat")["spec"])
    cluster.refused_kinds[INFERENCE_POOL] = "field not declared in schema"
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", gateway=ASKED["gateway"])
    await reconciler(cluster).reconcile(KEY)
    assert cluster.find(HTTP_ROUTE, "chat")["spec"] == before


async def test_a_pool_has_only_fields_that_every_release_of_v1_knows() -> None:
    """Of v1.0.0 to v1.3.0 of the Inference Extension; a field of v1.4.0 was refused by them."""
    cluster = cluster_with(**ASKED)
    await reconciler(cluster).reconcile(KEY)
    spec = cluster.find(INFERENCE_POOL, "chat")["spec"]
    assert set(spec) <= {"selector", "targetPorts", "endpointPickerRef"}
    assert set(spec["endpointPickerRef"]) <= {"group", "kind", "name", "port", "failureMode"}


async def test_a_route_goes_to_the_service_where_there_is_no_pool() -> None:
    cluster = cluster_with(gateway={"httpRoute": ASKED["gateway"]["httpRoute"]})
    await reconciler(cluster).reconcile(KEY)
    service = {"group": "", "kind": "Service", "name": "chat", "port": 8000}
    for rule in cluster.find(HTTP_ROUTE, "chat")["spec"]["rules"]:
        assert rule["backendRefs"] == [service]


async def test_several_nodes_are_refused_by_an_engine_that_runs_on_one() -> None:
    cluster = cluster_with(**BIG)
    await reconciler(cluster, site=Site(engine_multi_node=False)).reconcile(KEY)
    accepted = condition(cluster, "Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "UnsupportedByEngine")
    assert "spec.parallelism.nodes" in accepted["message"]
    assert cluster.names(LEADER_WORKER_SET) == []


async def test_several_nodes_need_the_leader_worker_set() -> None:
    cluster = cluster_with(**BIG)
    cluster.unserved_kinds.add(LEADER_WORKER_SET)
    await reconciler(cluster, site=MULTI_NODE).reconcile(KEY)
    accepted = condition(cluster, "Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "ApiNotServed")
    assert "install LeaderWorkerSet" in accepted["message"]


async def test_a_group_is_one_replica_in_the_status() -> None:
    cluster = cluster_with(replicas=2, **BIG)
    await reconciler(cluster, site=MULTI_NODE).reconcile(KEY)
    groups = cluster.find(LEADER_WORKER_SET, "chat")
    assert groups["spec"]["replicas"] == 2
    assert cluster.names(DEPLOYMENT) == []
    assert condition(cluster, "Ready")["reason"] == "RollingOut"
    # All that the controller says: no observedGeneration (seen of v0.7.0).
    groups["status"] = {"replicas": 2, "readyReplicas": 2, "updatedReplicas": 2}
    await reconciler(cluster, site=MULTI_NODE).reconcile(KEY)
    assert condition(cluster, "Ready")["reason"] == "RollingOut", "these may be of the spec before"
    put_groups(cluster, 2)
    await reconciler(cluster, site=MULTI_NODE).reconcile(KEY)
    status = cluster.find(ATOM_DEPLOYMENT, "chat")["status"]
    assert (status["replicas"], status["readyReplicas"]) == (2, 2)
    assert status["selector"].endswith("serving.atom.dev/role=leader")
    assert condition(cluster, "Ready")["status"] == "True"


async def test_groups_of_the_revision_before_are_no_finished_rollout() -> None:
    cluster = cluster_with(**BIG)
    worker = reconciler(cluster, site=MULTI_NODE)
    await worker.reconcile(KEY)
    groups = cluster.find(LEADER_WORKER_SET, "chat")
    groups["status"] = {"replicas": 1, "readyReplicas": 1, "updatedReplicas": 1}
    put_groups(cluster, 1)
    await worker.reconcile(KEY)
    assert condition(cluster, "Ready")["status"] == "True"
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", engine={"maxNumSeqs": 8})
    await worker.reconcile(KEY)  # the controller's counts are still those of the old groups
    assert condition(cluster, "Ready")["status"] == "False"
    put_groups(cluster, 1)
    await worker.reconcile(KEY)
    assert condition(cluster, "Ready")["status"] == "True"


def put_groups(cluster: FakeCluster, replicas: int) -> None:
    """Every pod of the LeaderWorkerSet `chat`, of its newest revision and ready."""
    groups = cluster.find(LEADER_WORKER_SET, "chat")
    template = groups["spec"]["leaderWorkerTemplate"]["leaderTemplate"]
    ready = [{"type": kind, "status": "True"} for kind in ("PodScheduled", "Ready")]
    for group in range(replicas):
        for name in (f"chat-{group}", f"chat-{group}-1"):
            metadata = {**template["metadata"], "name": name, "namespace": KEY.namespace}
            status = {"conditions": ready, "podIP": "10.0.0.1"}
            cluster.put_pod({"metadata": metadata, "spec": template["spec"], "status": status})


@pytest.mark.parametrize("asked", ["Auto", "Surge"])
@pytest.mark.parametrize("free_nodes", [1, 2])
async def test_groups_are_replaced_in_place_whatever_is_free(asked: str, free_nodes: int) -> None:
    """LeaderWorkerSet v0.7.0 takes a spare group away before the last old one is replaced."""
    cluster = cluster_with(**BIG, rollout={"strategy": asked})
    names = [f"n{number}" for number in range(2 + free_nodes)]
    cluster.nodes = [gpu_node(name) for name in names]
    await reconciler(cluster, site=MULTI_NODE).reconcile(KEY)
    for name in names[:2]:
        cluster.put_pod(gpu_pod(f"chat-{name}", name, 8, of="chat"))
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", engine={"maxNumSeqs": 8})
    await reconciler(cluster, site=MULTI_NODE).reconcile(KEY)
    rollout = cluster.find(ATOM_DEPLOYMENT, "chat")["status"]["rollout"]
    assert rollout["strategy"] == "InPlace"
    steps = cluster.find(LEADER_WORKER_SET, "chat")["spec"]["rolloutStrategy"]
    assert steps["rollingUpdateConfiguration"] == {"maxSurge": 0, "maxUnavailable": 1}


async def test_all_groups_at_once_go_where_that_is_asked_for() -> None:
    cluster = cluster_with(**BIG, replicas=2, rollout={"strategy": "Recreate"})
    for _ in range(2):
        await reconciler(cluster, site=MULTI_NODE).reconcile(KEY)
    steps = cluster.find(LEADER_WORKER_SET, "chat")["spec"]["rolloutStrategy"]
    assert steps["rollingUpdateConfiguration"] == {"maxSurge": 0, "maxUnavailable": "100%"}
    assert cluster.find(ATOM_DEPLOYMENT, "chat")["status"]["rollout"]["strategy"] == "Recreate"


async def test_one_node_again_replaces_the_groups_by_a_deployment() -> None:
    cluster = cluster_with(**BIG)
    worker = reconciler(cluster, site=MULTI_NODE)
    await worker.reconcile(KEY)
    cluster.find(ATOM_DEPLOYMENT, "chat")["spec"]["parallelism"] = {"tensor": 8}
    await worker.reconcile(KEY)
    assert cluster.names(DEPLOYMENT) == ["chat"]
    assert cluster.names(LEADER_WORKER_SET) == []
