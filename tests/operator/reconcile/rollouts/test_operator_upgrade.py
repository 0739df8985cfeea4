"""A newer operator that renders pods otherwise restarts none that serve: only the spec does.

And what holds under one version goes on to hold: drift is repaired, failures are rolled back, a
second look writes nothing.
"""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from atom_operator.domain import (
    ATOM_DEPLOYMENT,
    CONFIG_MAP,
    DEPLOYMENT,
    POD,
    Manifest,
)
from tests.support.in_memory_cluster.rollouts import finish_rollout
from tests.support.operator.builders_operator import (
    IMAGES,
    KEY,
    TINY_CONFIG,
    cluster_with,
    condition,
    pod,
    ready_records,
    reconciler,
)
from tests.support.operator.fake_cluster import FakeCluster
from tests.support.operator.older_operator import OLDER, as_an_older_one_left_it, older_pod

REVISION = "serving.atom.dev/revision"
OLD_FLAG = "--of-an-older-time"


async def reconcile(cluster: FakeCluster, images: dict[Any, str] | None = None) -> None:
    await reconciler(cluster, images=images).reconcile(KEY)


async def upgraded(*, digests: bool = True, records: bool = True, **changes: Any) -> FakeCluster:
    """`chat` serves with what an older version rendered; this version has not looked yet."""
    cluster = cluster_with(**changes)
    await settle(cluster)
    as_an_older_one_left_it(cluster, digests=digests, records=records)
    cluster.put_pod(older_pod(cluster))
    return cluster


async def settle(cluster: FakeCluster) -> None:
    for _ in range(3):
        await reconcile(cluster)
        finish_rollout(cluster)
    await reconcile(cluster)


def template(cluster: FakeCluster) -> Manifest:
    return copy.deepcopy(dict(cluster.find(DEPLOYMENT, "chat")["spec"]["template"]))


def args(cluster: FakeCluster) -> list[str]:
    return list(template(cluster)["spec"]["containers"][0]["args"])


def revision(cluster: FakeCluster) -> str:
    return str(cluster.find(DEPLOYMENT, "chat")["metadata"]["annotations"][REVISION])


@pytest.mark.parametrize(
    "left",
    [
        {"digests": True},
        {"digests": False},
        {"digests": False, "records": False},
    ],
    ids=["by the last version", "before digests", "before records"],
)
async def test_pods_that_serve_stay_as_they_are(left: dict[str, bool]) -> None:
    cluster = await upgraded(**left)
    before = template(cluster)
    await settle(cluster)
    assert template(cluster) == before
    assert ready_records(cluster) == [f"chat-{OLDER}"]
    assert condition(cluster, "Ready")["status"] == "True"
    assert "another version of the operator" in condition(cluster, "Progressing")["message"]


async def test_a_second_look_writes_nothing() -> None:
    cluster = await upgraded(digests=False)
    same = reconciler(cluster)
    for _ in range(3):
        await same.reconcile(KEY)
    cluster.writes.clear()
    await same.reconcile(KEY)
    assert cluster.writes == []


@pytest.mark.parametrize(
    "change",
    [
        {"replicas": 3},
        {"rollout": {"strategy": "Recreate", "autoRollback": False}},
        {"networkPolicy": {}},
    ],
    ids=lambda change: next(iter(change)),
)
async def test_a_change_that_concerns_no_pod_restarts_none(change: dict[str, Any]) -> None:
    cluster = await upgraded()
    await reconcile(cluster)
    before = template(cluster)
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", **change)
    await settle(cluster)
    assert template(cluster) == before
    assert cluster.find(DEPLOYMENT, "chat")["spec"]["replicas"] == change.get("replicas", 1)


async def test_a_change_of_the_spec_takes_this_versions_rendering() -> None:
    cluster = await upgraded()
    await reconcile(cluster)
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", engine={"maxModelLen": 1024})
    await settle(cluster)
    assert OLD_FLAG not in args(cluster)
    assert "1024" in args(cluster)
    assert "topologySpreadConstraints" in template(cluster)["spec"]
    assert "another version" not in condition(cluster, "Progressing")["message"]


@pytest.mark.parametrize("digests", [True, False])
async def test_a_change_that_is_taken_back_at_once_goes_back_to_what_serves(digests: bool) -> None:
    cluster = await upgraded(digests=digests)
    await settle(cluster)
    before = template(cluster)
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", engine={"maxModelLen": 1024})
    await reconcile(cluster)
    assert template(cluster) != before
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", engine={})
    await reconcile(cluster)
    assert (template(cluster), revision(cluster)) == (before, OLDER)


async def test_the_operators_other_default_image_is_something_asked_for() -> None:
    cluster = await upgraded()
    await reconcile(cluster, {**IMAGES, "cpu": "registry.test/atom:next"})
    assert OLD_FLAG not in args(cluster)
    assert template(cluster)["spec"]["containers"][0]["image"] == "registry.test/atom:next"


async def test_another_text_of_the_models_config_map_is_something_asked_for() -> None:
    source = {"source": "path:///models/tiny", "configRef": {"name": "facts"}}
    cluster = cluster_with(model=source)
    facts = {"metadata": {"name": "facts", "namespace": "default"}}
    cluster.create(CONFIG_MAP, {**facts, "data": {"config.json": json.dumps(TINY_CONFIG)}})
    await settle(cluster)
    as_an_older_one_left_it(cluster, digests=True)
    cluster.put_pod(older_pod(cluster))
    await reconcile(cluster)
    assert OLD_FLAG in args(cluster)
    other = {**TINY_CONFIG, "max_position_embeddings": 777}
    cluster.find(CONFIG_MAP, "facts")["data"]["config.json"] = json.dumps(other)
    await reconcile(cluster)
    assert OLD_FLAG not in args(cluster)
    assert "777" in args(cluster)


@pytest.mark.parametrize("digests", [True, False])
async def test_drift_of_kept_pods_is_repaired(digests: bool) -> None:
    cluster = await upgraded(digests=digests)
    before = template(cluster)
    # While no operator looked, and again under the new one.
    cluster.find(DEPLOYMENT, "chat")["spec"]["template"]["spec"]["containers"][0]["args"] = []
    await settle(cluster)
    assert template(cluster) == before
    container = cluster.find(DEPLOYMENT, "chat")["spec"]["template"]["spec"]["containers"][0]
    container["image"] = "registry.test/somebody:else"
    container["args"] = ["--nothing"]
    await reconcile(cluster)
    assert template(cluster) == before


async def test_an_image_that_somebody_changed_behind_our_back_is_not_kept() -> None:
    """Where no record says how the pods were: rather a rollout than somebody's image."""
    cluster = await upgraded(digests=False, records=False)
    container = cluster.find(DEPLOYMENT, "chat")["spec"]["template"]["spec"]["containers"][0]
    container["image"] = "registry.test/somebody:else"
    await reconcile(cluster)
    assert template(cluster)["spec"]["containers"][0]["image"] == IMAGES["cpu"]
    assert revision(cluster) != OLDER


async def test_a_failed_change_is_rolled_back_to_the_kept_pods_and_not_tried_again() -> None:
    cluster = await upgraded()
    await reconcile(cluster)
    before = template(cluster)
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", engine={"image": "registry.test/atom:broken"})
    await reconcile(cluster)
    bad = revision(cluster)
    assert bad != OLDER
    cluster.find(DEPLOYMENT, "chat")["status"] = stalled(cluster)
    await reconcile(cluster)
    assert (template(cluster), revision(cluster)) == (before, OLDER)

    # The next version renders what failed otherwise too: that is no reason for another try.
    failed = cluster.find(DEPLOYMENT, "chat")["metadata"]["annotations"]
    assert failed["serving.atom.dev/failed-revision"] == bad
    failed["serving.atom.dev/failed-revision"] = "by-the-version-before"
    await settle(cluster)
    assert (template(cluster), revision(cluster)) == (before, OLDER)
    assert condition(cluster, "Degraded")["reason"] == "RolledBack"


async def test_pods_that_never_served_are_rendered_anew() -> None:
    """A newer version may be the one that makes them work."""
    cluster = cluster_with()
    await reconcile(cluster)
    as_an_older_one_left_it(cluster, digests=True)
    cluster.put_pod(older_pod(cluster, ready=False))
    await reconcile(cluster)
    assert OLD_FLAG not in args(cluster)


async def test_some_that_serve_are_enough_though_a_replica_is_missing() -> None:
    cluster = cluster_with(replicas=2)
    await reconcile(cluster)
    as_an_older_one_left_it(cluster, digests=True)
    cluster.put_pod(older_pod(cluster))
    finish_rollout(cluster, ready=1)
    before = template(cluster)
    await reconcile(cluster)
    assert template(cluster) == before


async def test_a_pod_of_a_revision_that_is_gone_keeps_nothing() -> None:
    """Ready pods of the revision before the last change say nothing about the last one."""
    cluster = await upgraded(digests=True, records=False)
    del cluster.objects[POD, "default", "chat-0"]
    former = pod(cluster, "chat-7")
    former["metadata"]["annotations"]["serving.atom.dev/revision"] = "b4"
    cluster.put_pod(former)
    finish_rollout(cluster, ready=0)
    await reconcile(cluster)
    assert OLD_FLAG not in args(cluster)


async def test_a_spec_that_changed_while_no_operator_ran_is_carried_out() -> None:
    cluster = await upgraded(digests=False)
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", engine={"maxModelLen": 1024})
    await reconcile(cluster)
    assert OLD_FLAG not in args(cluster)
    assert "1024" in args(cluster)


def stalled(cluster: FakeCluster) -> dict[str, Any]:
    return {
        "observedGeneration": cluster.find(DEPLOYMENT, "chat")["metadata"]["generation"],
        "replicas": 2,
        "updatedReplicas": 1,
        "readyReplicas": 1,
        "availableReplicas": 1,
        "conditions": [
            {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}
        ],
    }
