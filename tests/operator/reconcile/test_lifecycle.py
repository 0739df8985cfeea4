"""From create to delete on the in-memory cluster: one function, whatever happened before."""

from __future__ import annotations

from datetime import timedelta

import pytest

from atom_operator.cluster.errors import TransientError
from atom_operator.domain import (
    ATOM_DEPLOYMENT,
    CHILD_KINDS,
    CONFIG_MAP,
    CONTROLLER_REVISION,
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    EVENT,
    POD,
    SERVICE,
    SERVICE_ACCOUNT,
    Kind,
)
from atom_operator.integration_values import Site
from tests.support.in_memory_cluster.rollouts import finish_rollout
from tests.support.operator.builders_operator import (
    KEY,
    NOW,
    TINY_CONFIG,
    cluster_with,
    condition,
    reconciler,
)
from tests.support.operator.fake_cluster import FakeCluster


async def settle(cluster: FakeCluster) -> None:
    await reconciler(cluster).reconcile(KEY)
    finish_rollout(cluster)
    await reconciler(cluster).reconcile(KEY)


async def test_create_makes_every_child_with_its_owner() -> None:
    cluster = cluster_with(replicas=2)
    await reconciler(cluster).reconcile(KEY)
    uid = cluster.find(ATOM_DEPLOYMENT, "chat")["metadata"]["uid"]
    assert cluster.names(CONFIG_MAP) == ["chat-plan"]
    for kind in (DEPLOYMENT, SERVICE, SERVICE_ACCOUNT, DISRUPTION_BUDGET):
        assert cluster.names(kind) == ["chat"]
        (owner,) = cluster.find(kind, "chat")["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["controller"]) == (uid, True)


async def test_the_deployment_is_written_after_what_its_pods_need_and_the_status_last() -> None:
    cluster = cluster_with()
    await reconciler(cluster).reconcile(KEY)
    (record,) = cluster.names(CONTROLLER_REVISION)
    assert cluster.writes == [
        "apply ServiceAccount/chat",
        "apply ConfigMap/chat-plan",
        "apply Service/chat",
        f"apply ControllerRevision/{record}",
        "apply Deployment/chat",
        "status",
    ]


async def test_ready_when_the_rollout_is_complete() -> None:
    cluster = cluster_with()
    await reconciler(cluster).reconcile(KEY)
    assert condition(cluster, "Ready")["status"] == "False"
    finish_rollout(cluster)
    await reconciler(cluster).reconcile(KEY)
    states = {
        item["type"]: item["status"]
        for item in cluster.find(ATOM_DEPLOYMENT, "chat")["status"]["conditions"]
    }
    assert states == {
        "Accepted": "True",
        "CapacityFits": "True",
        "Scheduled": "True",
        "ModelLoaded": "True",
        "CapacityMatched": "Unknown",
        "Progressing": "False",
        "Available": "True",
        "Degraded": "False",
        "Ready": "True",
    }


async def test_status_has_what_kubectl_and_autoscalers_read() -> None:
    cluster = cluster_with(replicas=2)
    await settle(cluster)
    status = cluster.find(ATOM_DEPLOYMENT, "chat")["status"]
    assert (status["replicas"], status["readyReplicas"]) == (2, 2)
    assert "serving.atom.dev/deployment=chat" in status["selector"].split(",")
    assert status["url"] == "http://chat.default.svc:8000"
    deployment = cluster.find(DEPLOYMENT, "chat")
    annotations = deployment["metadata"]["annotations"]
    assert status["revision"] == annotations["serving.atom.dev/revision"]
    capacity = status["capacity"]
    assert capacity["kvBytesPerToken"] == 2 * 2 * 2 * 32 * 4
    assert capacity["kvTokens"] == capacity["blocks"] * 16
    assert capacity["maxSequences"] == capacity["concurrency"][-1]["sequences"] == 512


async def test_a_model_with_windows_says_what_they_keep_of_a_sequence() -> None:
    site = Site(engine_architectures=("GptOssForCausalLM",))
    model = {"source": "hf://openai/gpt-oss-20b"}
    cluster = cluster_with(model=model, accelerator={"type": "amd", "product": "MI300X"})
    await reconciler(cluster, site=site).reconcile(KEY)
    capacity = cluster.find(ATOM_DEPLOYMENT, "chat")["status"]["capacity"]
    # 12 layers of 8 heads of 64, K and V in bfloat16; 128 tokens touch 9 blocks of 16
    assert capacity["kvBytesPerToken"] == 24_576
    assert capacity["kvWindowBytesPerSequence"] == 9 * 16 * 24_576


async def test_a_second_reconcile_changes_no_object() -> None:
    cluster = cluster_with(replicas=2)
    await settle(cluster)
    versions = {key: item["metadata"]["resourceVersion"] for key, item in cluster.objects.items()}
    await reconciler(cluster, NOW + timedelta(hours=1)).reconcile(KEY)
    assert versions == {
        key: item["metadata"]["resourceVersion"] for key, item in cluster.objects.items()
    }
    assert cluster.writes.count("status") == 2


async def test_transition_time_moves_on_a_flip_only() -> None:
    cluster = cluster_with()
    await reconciler(cluster).reconcile(KEY)
    created = condition(cluster, "Accepted")["lastTransitionTime"]
    finish_rollout(cluster)
    await reconciler(cluster, NOW + timedelta(seconds=60)).reconcile(KEY)
    assert condition(cluster, "Accepted")["lastTransitionTime"] == created
    assert condition(cluster, "Ready")["lastTransitionTime"] == "2026-01-02T03:05:05Z"


@pytest.mark.parametrize("kind", CHILD_KINDS, ids=lambda kind: kind.kind)
async def test_a_deleted_child_comes_back(kind: Kind) -> None:
    cluster = cluster_with(replicas=2)
    await settle(cluster)
    for name in cluster.names(kind):
        before = cluster.objects.pop((kind, "default", name))
        await reconciler(cluster).reconcile(KEY)
        after = cluster.find(kind, name)
        for field in ("spec", "data"):
            assert after.get(field) == before.get(field)


async def test_a_drifted_field_is_put_back_and_a_foreign_one_is_left() -> None:
    cluster = cluster_with()
    await settle(cluster)
    deployment = cluster.find(DEPLOYMENT, "chat")
    image = deployment["spec"]["template"]["spec"]["containers"][0]["image"]
    deployment["spec"]["template"]["spec"]["containers"][0]["image"] = "evil.test/other"
    deployment["metadata"]["annotations"]["team.test/note"] = "keep me"
    await reconciler(cluster).reconcile(KEY)
    deployment = cluster.find(DEPLOYMENT, "chat")
    assert deployment["spec"]["template"]["spec"]["containers"][0]["image"] == image
    assert deployment["metadata"]["annotations"]["team.test/note"] == "keep me"


async def test_a_child_spoilt_by_a_foreign_entry_is_replaced() -> None:
    cluster = cluster_with()
    await settle(cluster)
    cluster.change_spec(SERVICE, "chat", ports=[{"name": "http", "port": 9999}])
    cluster.spoilt_kinds.add(SERVICE)
    await reconciler(cluster).reconcile(KEY)
    (port,) = cluster.find(SERVICE, "chat")["spec"]["ports"]
    assert port["port"] == 8000
    assert condition(cluster, "Degraded")["reason"] != "ApplyRefused"


async def test_scaling_changes_replicas_but_not_the_revision() -> None:
    cluster = cluster_with()
    await settle(cluster)
    template = cluster.find(DEPLOYMENT, "chat")["spec"]["template"]
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", replicas=3)
    await reconciler(cluster).reconcile(KEY)
    deployment = cluster.find(DEPLOYMENT, "chat")
    assert (deployment["spec"]["replicas"], deployment["spec"]["template"]) == (3, template)
    assert cluster.names(DISRUPTION_BUDGET) == ["chat"]


async def test_a_child_that_is_no_longer_wanted_is_pruned() -> None:
    cluster = cluster_with(replicas=2)
    await settle(cluster)
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", replicas=1)
    await reconciler(cluster).reconcile(KEY)
    assert cluster.names(DISRUPTION_BUDGET) == []
    assert cluster.names(DEPLOYMENT) == ["chat"]


async def test_a_field_that_is_no_longer_rendered_is_removed() -> None:
    overlay = {"spec": {"priorityClassName": "batch"}}
    cluster = cluster_with(template=overlay)
    await settle(cluster)
    pod_spec = cluster.find(DEPLOYMENT, "chat")["spec"]["template"]["spec"]
    assert pod_spec["priorityClassName"] == "batch"
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", template=None)
    await reconciler(cluster).reconcile(KEY)
    pod_spec = cluster.find(DEPLOYMENT, "chat")["spec"]["template"]["spec"]
    assert "priorityClassName" not in pod_spec


@pytest.mark.parametrize("attempt", range(1, 7))
async def test_a_failure_of_any_write_is_repaired_by_the_next_run(attempt: int) -> None:
    undisturbed = cluster_with(replicas=2)
    await settle(undisturbed)
    cluster = cluster_with(replicas=2)
    cluster.fail_on(attempt, TransientError("the API server went away"))
    with pytest.raises(TransientError):
        await reconciler(cluster).reconcile(KEY)
    await settle(cluster)
    # The pass that failed has a status and Events of its own, and numbers pods otherwise.
    made, wanted = (
        {key: item.get("spec") for key, item in each.objects.items() if key[0] not in (EVENT, POD)}
        for each in (cluster, undisturbed)
    )
    assert made == wanted
    assert condition(cluster, "Ready")["status"] == "True"


async def test_scaled_to_zero_is_ready_and_not_available() -> None:
    cluster = cluster_with(replicas=0)
    await settle(cluster)
    ready, available = condition(cluster, "Ready"), condition(cluster, "Available")
    assert (ready["status"], ready["reason"]) == ("True", "ScaledToZero")
    assert (available["status"], available["reason"]) == ("False", "ScaledToZero")


async def test_a_deleted_atomdeployment_is_left_to_garbage_collection() -> None:
    cluster = cluster_with()
    await settle(cluster)
    cluster.remove_with_children("chat")
    writes = list(cluster.writes)
    await reconciler(cluster).reconcile(KEY)
    # Events have no owner: they tell what was, until the API server forgets them.
    left = {kind for kind, _, _ in cluster.objects}
    assert (left, cluster.writes) == ({EVENT}, writes)


async def test_nothing_is_recreated_while_the_owner_is_being_deleted() -> None:
    cluster = cluster_with()
    await settle(cluster)
    cluster.find(ATOM_DEPLOYMENT, "chat")["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z"
    del cluster.objects[SERVICE, "default", "chat"]
    await reconciler(cluster).reconcile(KEY)
    assert cluster.names(SERVICE) == []


async def test_the_spec_is_never_written_back() -> None:
    cluster = cluster_with()
    before = dict(cluster.find(ATOM_DEPLOYMENT, "chat")["spec"])
    await settle(cluster)
    parent = cluster.find(ATOM_DEPLOYMENT, "chat")
    assert parent["spec"] == before
    assert "finalizers" not in parent["metadata"]
    assert parent["spec"]["model"]["config"] == TINY_CONFIG
