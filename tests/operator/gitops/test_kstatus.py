"""Who waits by kstatus (Flux, kpt) sees of an AtomDeployment what the operator means."""

from __future__ import annotations

from datetime import timedelta

import pytest

from atom_operator.api.crd import UNSEEN, build_crd
from atom_operator.domain import ATOM_DEPLOYMENT, DEPLOYMENT, EVENT, Manifest
from tests.operator.gitops.test_flux_health import HEALTH
from tests.support.in_memory_cluster.rollouts import finish_rollout
from tests.support.operator.builders_operator import KEY, NOW, cluster_with, reconciler
from tests.support.operator.kstatus import kstatus
from tests.support.operator.situations import SITUATIONS, situation

# What kstatus has no state for.
EXPECTED = {**HEALTH, "suspended": "InProgress"}


def as_stored(manifest: Manifest) -> Manifest:
    """With the default of the CRD, which the API server puts in."""
    return {"status": dict(UNSEEN), **manifest}


def true_conditions(manifest: Manifest) -> set[str]:
    conditions = manifest["status"]["conditions"]
    return {item["type"] for item in conditions if item["status"] == "True"}


@pytest.mark.parametrize("name", SITUATIONS)
async def test_a_reader_by_kstatus_sees_what_the_operator_means(name: str) -> None:
    assert kstatus(as_stored(await situation(name))) == EXPECTED[name]


@pytest.mark.parametrize("name", [name for name in SITUATIONS if name != "new"])
async def test_one_of_four_things_holds_in_every_situation(name: str) -> None:
    manifest = await situation(name)
    told = true_conditions(manifest)
    assert len(told & {"Ready", "Suspended", "Reconciling", "Stalled"}) == 1
    conditions = {item["type"]: item for item in manifest["status"]["conditions"]}
    for kind in told & {"Reconciling", "Stalled"}:
        for field in ("reason", "message", "observedGeneration"):
            assert conditions[kind][field] == conditions["Ready"][field]


def test_an_object_that_nobody_has_looked_at_is_never_taken_for_current() -> None:
    schema = build_crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    status = schema["properties"]["status"]
    assert status["default"] == {"observedGeneration": -1, "conditions": []}
    assert set(status["required"]) <= status["default"].keys()
    bare = {"metadata": {"generation": 1}}
    assert kstatus(bare) == "Current", "what the default is for"
    assert kstatus({**bare, "status": status["default"]}) == "InProgress"


async def test_pods_that_end_are_reconciled_and_then_it_is_suspended() -> None:
    cluster = cluster_with()
    await reconciler(cluster).reconcile(KEY)
    finish_rollout(cluster)
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", suspend=True)
    await reconciler(cluster).reconcile(KEY)
    told = cluster.find(ATOM_DEPLOYMENT, "chat")
    assert true_conditions(told) & {"Suspended", "Reconciling"} == {"Reconciling"}
    finish_rollout(cluster)
    await reconciler(cluster).reconcile(KEY)
    assert true_conditions(told) & {"Suspended", "Reconciling"} == {"Suspended"}


async def test_replicas_that_somebody_took_away_stall() -> None:
    cluster = cluster_with()
    await reconciler(cluster).reconcile(KEY)
    finish_rollout(cluster)
    scaling = {"maxReplicas": 3, "minReplicas": 1, "method": "HPA"}
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", autoscaling=scaling)
    await reconciler(cluster).reconcile(KEY)
    cluster.change_spec(DEPLOYMENT, "chat", replicas=0)
    finish_rollout(cluster)
    await reconciler(cluster).reconcile(KEY)
    assert kstatus(cluster.find(ATOM_DEPLOYMENT, "chat")) == "Failed"


async def test_no_event_repeats_what_another_condition_has_told() -> None:
    cluster = cluster_with()
    for seconds in range(3):
        await reconciler(cluster, NOW + timedelta(seconds=seconds)).reconcile(KEY)
        finish_rollout(cluster)
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", engine={"extraArgs": ["--model=x"]})
    await reconciler(cluster).reconcile(KEY)
    assert kstatus(cluster.find(ATOM_DEPLOYMENT, "chat")) == "Failed"
    words = [str(cluster.find(EVENT, name)["message"]) for name in cluster.names(EVENT)]
    assert any(text.startswith("Accepted=False") for text in words)
    assert not any(text.startswith(("Reconciling=", "Stalled=")) for text in words)
