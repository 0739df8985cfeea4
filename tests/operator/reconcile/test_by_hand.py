"""What somebody did to a workload past its AtomDeployment is said, with who did it."""

from __future__ import annotations

from typing import Any

import pytest

from atom_operator.cluster.foreign_edits import fields_of_others, foreign_edits, scaled_by
from atom_operator.cluster.object_cache import StoredObject
from atom_operator.domain import ATOM_DEPLOYMENT, DEPLOYMENT
from tests.support.in_memory_cluster.rollouts import finish_rollout
from tests.support.operator.builders_operator import KEY, cluster_with, condition, reconciler
from tests.support.operator.fake_cluster import FakeCluster

ENGINE = 'k:{"name":"engine"}'
OURS = {
    "manager": "atom-operator",
    "operation": "Apply",
    "fieldsV1": {
        "f:spec": {"f:template": {"f:spec": {"f:containers": {ENGINE: {".": {}, "f:image": {}}}}}}
    },
}


def by(manager: str, spec: dict[str, Any], **more: str) -> dict[str, Any]:
    return {"manager": manager, "operation": "Update", "fieldsV1": {"f:spec": spec}, **more}


def of_engine(fields: dict[str, Any]) -> dict[str, Any]:
    return {"f:template": {"f:spec": {"f:containers": {ENGINE: {".": {}, **fields}}}}}


NEW_VARIABLE = {"f:env": {'k:{"name":"FOO"}': {".": {}, "f:name": {}, "f:value": {}}}}
ENTRIES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "a pause": (by("kubectl-rollout", {"f:paused": {}}), ("spec.paused",)),
    "a variable": (
        by("kubectl-edit", of_engine(NEW_VARIABLE)),
        ("spec.template.spec.containers[engine].env[FOO]",),
    ),
    "a port": (
        by("kubectl-edit", of_engine({"f:ports": {'k:{"containerPort":1,"protocol":"TCP"}': {}}})),
        ("spec.template.spec.containers[engine].ports[1/TCP]",),
    ),
    "a value that is ours too": (by("kubectl-edit", of_engine({"f:image": {}})), ()),
    "a restart": (
        by(
            "kubectl-rollout",
            {
                "f:template": {
                    "f:metadata": {"f:annotations": {"f:kubectl.kubernetes.io/restartedAt": {}}}
                }
            },
        ),
        (),
    ),
    "a number by an autoscaler": (by("hpa", {"f:replicas": {}}, subresource="scale"), ()),
    "its own controller": (by("kube-controller-manager", {"f:x": {}}), ()),
    "a finalizer set": (by("kubectl", {"f:finalizers": {'v:"a"': {}}}), ("spec.finalizers[a]",)),
}


@pytest.mark.parametrize("name", ENTRIES)
def test_fields_of_others_are_told_apart_from_ours(name: str) -> None:
    entry, paths = ENTRIES[name]
    stored = {
        "metadata": {
            "name": "chat",
            "namespace": "default",
            "resourceVersion": "1",
            "labels": {"serving.atom.dev/deployment": "chat"},
            "managedFields": [OURS, entry],
        }
    }
    edits = foreign_edits(stored)
    assert tuple(edit.path for edit in edits) == paths
    assert {edit.manager for edit in edits} <= {entry["manager"]}
    # The cache keeps what is asked of it, and no more.
    cached = StoredObject.of(stored).manifest()
    assert foreign_edits(cached) == edits
    assert cached["metadata"].get("managedFields", []) == fields_of_others([OURS, entry])


@pytest.mark.parametrize(
    ("manager", "more", "named"),
    [
        ("kube-controller-manager", {"subresource": "scale"}, "a HorizontalPodAutoscaler"),
        ("keda-operator", {"subresource": "scale"}, "manager keda-operator"),
        ("kubectl", {}, "manager kubectl"),
        ("atom-operator", {}, None),
        ("kube-controller-manager", {"subresource": "status"}, None),
    ],
)
def test_who_set_the_number_of_replicas_is_named(
    manager: str, more: dict[str, str], named: str | None
) -> None:
    entry = by(manager, {"f:replicas": {}}, **more)
    found = scaled_by({"metadata": {"managedFields": [OURS, entry]}})
    assert (found or "").startswith(named or "")
    assert (found is None) == (named is None)


@pytest.mark.parametrize("odd", [None, "x", [None], [{}], [{"manager": 1, "fieldsV1": "x"}]])
def test_writers_that_cannot_be_read_are_none(odd: Any) -> None:
    assert foreign_edits({"metadata": {"managedFields": odd}}) == ()


async def serving(replicas: int = 2, **changes: Any) -> tuple[FakeCluster, Any]:
    cluster = cluster_with(replicas=replicas, **changes)
    operator = reconciler(cluster)
    await operator.reconcile(KEY)
    finish_rollout(cluster)
    await operator.reconcile(KEY)
    return cluster, operator


async def test_a_paused_deployment_is_said_with_who_paused_it() -> None:
    cluster, operator = await serving()
    stored = cluster.find(DEPLOYMENT, "chat")
    stored["spec"]["paused"] = True
    stored["metadata"]["managedFields"] = [ENTRIES["a pause"][0]]
    await operator.reconcile(KEY)
    # All that serves is of the newest spec: the pause is told, and waits for nothing yet.
    assert condition(cluster, "Ready")["status"] == "True"
    assert "is paused by kubectl-rollout" in condition(cluster, "Progressing")["message"]
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", engine={"maxNumSeqs": 7})
    await operator.reconcile(KEY)
    stored["status"] |= {
        "updatedReplicas": 0,
        "observedGeneration": stored["metadata"]["generation"],
    }
    await operator.reconcile(KEY)
    for kind in ("Progressing", "Ready"):
        told = condition(cluster, kind)
        assert (told["status"], told["reason"]) == ("False", "Paused")
        assert "kubectl rollout resume deployment/chat" in told["message"]


async def test_a_hand_edited_workload_is_said_with_who_edits() -> None:
    cluster, operator = await serving()
    stored = cluster.find(DEPLOYMENT, "chat")
    stored["metadata"]["managedFields"] = [OURS, ENTRIES["a variable"][0]]
    await operator.reconcile(KEY)
    told = condition(cluster, "Progressing")
    assert told["reason"] == "Complete"
    assert "kubectl-edit also set spec.template.spec.containers[engine].env[FOO]" in told["message"]


async def test_a_finished_rollout_with_a_pod_that_is_not_ready_is_none() -> None:
    cluster, operator = await serving()
    finish_rollout(cluster, ready=1)
    await operator.reconcile(KEY)
    progressing, ready_now = condition(cluster, "Progressing"), condition(cluster, "Ready")
    assert (progressing["status"], progressing["reason"]) == ("False", "Complete")
    assert progressing["message"].startswith("2 of 2 replicas are rolled out, 1 are ready")
    assert (ready_now["status"], ready_now["reason"]) == ("False", "ReplicasNotReady")
    assert ready_now["message"] == "1 of 2 replicas are ready"


async def test_replicas_that_somebody_took_away_are_not_as_asked() -> None:
    scaling = {"maxReplicas": 3, "minReplicas": 1, "method": "HPA"}
    cluster, operator = await serving(1, autoscaling=scaling)
    cluster.change_spec(DEPLOYMENT, "chat", replicas=0)
    finish_rollout(cluster)
    await operator.reconcile(KEY)
    told = condition(cluster, "Ready")
    assert (told["status"], told["reason"]) == ("False", "ScaledToZero")
    assert "kubectl scale deployment/chat --replicas=1" in told["message"]


@pytest.mark.parametrize(("seconds", "warned"), [(10, True), (86_400, False), (None, False)])
async def test_a_deadline_that_no_rollout_can_keep_is_warned_about(
    seconds: int | None, warned: bool
) -> None:
    rollout = {"drainSeconds": 7200, "progressDeadlineSeconds": seconds}
    cluster = cluster_with(rollout={k: v for k, v in rollout.items() if v is not None})
    await reconciler(cluster).reconcile(KEY)
    told = condition(cluster, "Accepted")
    assert told["status"] == "True"
    assert ("progressDeadlineSeconds: 10 is less than" in told["message"]) == warned
