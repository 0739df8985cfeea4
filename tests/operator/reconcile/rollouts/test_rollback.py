"""A revision that cannot become ready gives way to the last one that was, once and for good."""

from __future__ import annotations

from typing import Any

import pytest

from atom_operator.cluster.errors import TransientError
from atom_operator.domain import (
    ATOM_DEPLOYMENT,
    DEPLOYMENT,
    POD,
    EngineHealth,
    Manifest,
)
from tests.support.in_memory_cluster.rollouts import finish_rollout
from tests.support.operator.builders_operator import (
    KEY,
    cluster_with,
    condition,
    pod,
    ready_records,
    reconciler,
)
from tests.support.operator.fake_cluster import FakeCluster
from tests.support.operator.fake_engines import FakeEngines

REVISION = "serving.atom.dev/revision"
OUT_OF_MEMORY = {
    "restartCount": 1,
    "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}},
    "lastState": {
        "terminated": {"reason": "OOMKilled", "exitCode": 137, "message": "loading weights 80 %"}
    },
}


async def reconcile(cluster: FakeCluster, engines: FakeEngines | None = None) -> None:
    await reconciler(cluster, engines=engines).reconcile(KEY)


async def serving(**changes: Any) -> FakeCluster:
    """One revision of `chat` that was ready once."""
    cluster = cluster_with(**changes)
    await reconcile(cluster)
    finish_rollout(cluster)
    await reconcile(cluster)
    return cluster


async def ask_for(cluster: FakeCluster, **engine: Any) -> str:
    """Change the spec; the revision that the operator then asks for."""
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", engine=engine)
    await reconcile(cluster)
    return revision(cluster)


def revision(cluster: FakeCluster) -> str:
    return str(cluster.find(DEPLOYMENT, "chat")["metadata"]["annotations"][REVISION])


def image(cluster: FakeCluster) -> str:
    spec = cluster.find(DEPLOYMENT, "chat")["spec"]["template"]["spec"]
    return str(spec["containers"][0]["image"])


def pass_the_deadline(cluster: FakeCluster) -> None:
    """What the Deployment controller writes when a rollout makes no progress."""
    stored = cluster.find(DEPLOYMENT, "chat")
    stored["status"] = {
        "observedGeneration": stored["metadata"]["generation"],
        "replicas": 2,
        "updatedReplicas": 1,
        "readyReplicas": 1,
        "availableReplicas": 1,
        "conditions": [
            {
                "type": "Progressing",
                "status": "False",
                "reason": "ProgressDeadlineExceeded",
                "message": "ReplicaSet chat-2 has timed out progressing.",
            }
        ],
    }


def failing_pod(cluster: FakeCluster, status: dict[str, Any], **more: Any) -> Manifest:
    """A pod of the revision that the Deployment asks for now."""
    container = {"name": "engine", "ready": False, **status}
    manifest = pod(cluster, "chat-2", ready=False, containerStatuses=[container], **more)
    cluster.put_pod(manifest)
    return manifest


async def test_what_was_ready_is_remembered_and_its_predecessor_forgotten() -> None:
    cluster = await serving()
    assert ready_records(cluster) == [f"chat-{revision(cluster)}"]
    second = await ask_for(cluster, maxModelLen=1024)
    assert ready_records(cluster) != [f"chat-{second}"]
    finish_rollout(cluster)
    await reconcile(cluster)
    assert ready_records(cluster) == [f"chat-{second}"]


async def test_a_revision_that_passes_its_deadline_is_rolled_back() -> None:
    cluster = await serving()
    good, good_image = revision(cluster), image(cluster)
    bad = await ask_for(cluster, image="registry.test/atom:broken")
    failing_pod(cluster, OUT_OF_MEMORY)
    pass_the_deadline(cluster)
    await reconcile(cluster)
    assert (revision(cluster), image(cluster)) == (good, good_image)
    degraded = condition(cluster, "Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "RolledBack")
    for part in (
        bad,
        good,
        "OOMKilled (exit code 137): loading weights 80 %",
        "change of the spec",
    ):
        assert part in degraded["message"]
    status = cluster.find(ATOM_DEPLOYMENT, "chat")["status"]
    assert (status["revision"], status["rollout"]["failedRevision"]) == (good, bad)
    ready = condition(cluster, "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "RolledBack")


async def test_the_reason_outlives_the_failing_pod_and_nothing_flaps() -> None:
    cluster = await serving()
    good = revision(cluster)
    await ask_for(cluster, image="registry.test/atom:broken")
    failing_pod(cluster, OUT_OF_MEMORY)
    pass_the_deadline(cluster)
    await reconcile(cluster)
    del cluster.objects[POD, "default", "chat-2"]
    finish_rollout(cluster)
    await reconcile(cluster)
    writes = len(cluster.writes)
    for _ in range(3):
        await reconcile(cluster)
    assert revision(cluster) == good
    assert "status" not in cluster.writes[writes:]
    assert "OOMKilled" in condition(cluster, "Degraded")["message"]
    assert condition(cluster, "Available")["status"] == "True"
    assert condition(cluster, "Progressing")["reason"] == "RolledBack"


async def test_scaling_is_not_another_try_and_reaches_what_runs() -> None:
    cluster = await serving()
    good = revision(cluster)
    await ask_for(cluster, image="registry.test/atom:broken")
    pass_the_deadline(cluster)
    await reconcile(cluster)
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", replicas=3)
    await reconcile(cluster)
    deployment = cluster.find(DEPLOYMENT, "chat")
    assert (revision(cluster), deployment["spec"]["replicas"]) == (good, 3)


async def test_another_spec_is_tried_and_so_is_the_failed_one_after_it() -> None:
    cluster = await serving()
    bad = await ask_for(cluster, image="registry.test/atom:broken")
    pass_the_deadline(cluster)
    await reconcile(cluster)
    third = await ask_for(cluster, image="registry.test/atom:3")
    assert third != bad
    assert image(cluster) == "registry.test/atom:3"
    assert condition(cluster, "Degraded")["status"] == "False"
    finish_rollout(cluster)
    await reconcile(cluster)
    assert await ask_for(cluster, image="registry.test/atom:broken") == bad


async def test_going_back_to_the_ready_spec_ends_the_rollback() -> None:
    cluster = await serving()
    good = revision(cluster)
    await ask_for(cluster, image="registry.test/atom:broken")
    pass_the_deadline(cluster)
    await reconcile(cluster)
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", engine={})
    finish_rollout(cluster)
    await reconcile(cluster)
    finish_rollout(cluster)
    await reconcile(cluster)
    assert revision(cluster) == good
    assert condition(cluster, "Degraded")["status"] == "False"
    assert condition(cluster, "Ready")["status"] == "True"


async def test_pods_that_keep_crashing_are_not_waited_for() -> None:
    cluster = await serving()
    good = revision(cluster)
    await ask_for(cluster, image="registry.test/atom:broken")
    failing_pod(cluster, {**OUT_OF_MEMORY, "restartCount": 4})
    await reconcile(cluster)
    assert revision(cluster) != good, "a few restarts may still lead to a ready pod"
    failing_pod(cluster, {**OUT_OF_MEMORY, "restartCount": 5})
    await reconcile(cluster)
    assert revision(cluster) == good
    assert "was restarted 5 times" in condition(cluster, "Degraded")["message"]


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (
            {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}},
            "ImagePullBackOff: not found",
        ),
        ({"state": {"running": {}}}, "starting: loading weights 43%"),
    ],
    ids=["bad image", "stalled load"],
)
async def test_the_cause_is_what_the_pod_or_its_engine_says(
    status: dict[str, Any], words: str
) -> None:
    engines = FakeEngines(healths={"10.0.0.9": EngineHealth("starting", "loading weights 43%")})
    cluster = await serving()
    await ask_for(cluster, image="registry.test/atom:broken")
    failing_pod(cluster, status, podIP="10.0.0.9")
    pass_the_deadline(cluster)
    await reconcile(cluster, engines)
    assert words in condition(cluster, "Degraded")["message"]


async def test_the_controllers_old_verdict_does_not_count_for_a_new_revision() -> None:
    cluster = await serving()
    pass_the_deadline(cluster)  # of the revision that was ready, which then lost its node
    bad = await ask_for(cluster, image="registry.test/atom:2")
    await reconcile(cluster)
    assert revision(cluster) == bad


async def test_without_anything_that_was_ready_the_spec_stays() -> None:
    cluster = cluster_with()
    await reconcile(cluster)
    first = revision(cluster)
    pass_the_deadline(cluster)
    await reconcile(cluster)
    assert revision(cluster) == first
    assert condition(cluster, "Progressing")["reason"] == "DeadlineExceeded"


async def test_who_does_not_want_it_is_not_rolled_back_and_ends_one_by_saying_so() -> None:
    choice = {"autoRollback": False}
    cluster = await serving(rollout=choice)
    bad = await ask_for(cluster, image="registry.test/atom:broken")
    pass_the_deadline(cluster)
    await reconcile(cluster)
    assert revision(cluster) == bad
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", rollout={})
    await reconcile(cluster)
    assert revision(cluster) != bad
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", rollout=choice)
    await reconcile(cluster)
    assert revision(cluster) == bad


@pytest.mark.parametrize("attempt", [1, 2])  # the workload and the status: no more is written
async def test_a_rollback_that_is_cut_off_anywhere_is_finished(attempt: int) -> None:
    cluster = await serving()
    good = revision(cluster)
    await ask_for(cluster, image="registry.test/atom:broken")
    failing_pod(cluster, OUT_OF_MEMORY)
    pass_the_deadline(cluster)
    cluster.fail_on(attempt, TransientError("the API server went away"))
    with pytest.raises(TransientError):
        await reconcile(cluster)
    await reconcile(cluster)
    assert revision(cluster) == good
    assert ready_records(cluster) == [f"chat-{good}"]
    assert "OOMKilled" in condition(cluster, "Degraded")["message"]


async def test_a_spec_that_changed_while_nobody_looked_does_not_lose_what_was_ready() -> None:
    cluster = cluster_with()
    await reconcile(cluster)
    good, good_image = revision(cluster), image(cluster)
    finish_rollout(cluster)
    await ask_for(cluster, image="registry.test/atom:broken")
    assert ready_records(cluster) == [f"chat-{good}"]
    pass_the_deadline(cluster)
    await reconcile(cluster)
    assert (revision(cluster), image(cluster)) == (good, good_image)


async def test_the_deadline_is_the_start_up_budget_or_what_was_asked() -> None:
    cluster = cluster_with()
    await reconcile(cluster)
    spec = cluster.find(DEPLOYMENT, "chat")["spec"]
    probe = spec["template"]["spec"]["containers"][0]["startupProbe"]
    assert spec["progressDeadlineSeconds"] > probe["failureThreshold"] * probe["periodSeconds"]
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", rollout={"progressDeadlineSeconds": 90})
    await reconcile(cluster)
    assert cluster.find(DEPLOYMENT, "chat")["spec"]["progressDeadlineSeconds"] == 90
