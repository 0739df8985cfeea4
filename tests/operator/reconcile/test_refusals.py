"""What cannot be done becomes a condition with a reason and a remedy; what runs goes on."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from atom_operator.domain import ATOM_DEPLOYMENT, CONFIG_MAP, DEPLOYMENT, POD, SERVICE
from atom_operator.kinds import QUOTA_WORKLOAD
from tests.support.in_memory_cluster.rollouts import finish_rollout
from tests.support.operator.builders_operator import (
    KEY,
    NOW,
    TINY_CONFIG,
    cluster_with,
    condition,
    gated_pod,
    pod,
    reconciler,
)
from tests.support.operator.jobs import fail, only_job

LLAMA_70B = {"source": "hf://meta-llama/Llama-3.3-70B-Instruct"}
UNKNOWN_MODEL = {"source": "hf://acme/private-model"}


async def test_weights_that_do_not_fit_start_nothing_and_say_the_numbers() -> None:
    cluster = cluster_with(model=LLAMA_70B, accelerator={"type": "amd", "product": "MI210"})
    await reconciler(cluster).reconcile(KEY)
    fits = condition(cluster, "CapacityFits")
    assert (fits["status"], fits["reason"]) == ("False", "WeightsDoNotFit")
    # 70,553,706,496 parameters of two bytes, and 512 of a table for each of 131,072 positions
    assert "131.5 GiB" in fits["message"]
    assert "spec.accelerator.product" in fits["message"]
    assert cluster.names(DEPLOYMENT) == []
    ready = condition(cluster, "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "WeightsDoNotFit")


async def test_a_context_that_does_not_fit_names_the_longest_that_does() -> None:
    model = {"source": "hf://meta-llama/Llama-3.1-8B"}
    accelerator = {"type": "amd", "memory": "24Gi"}
    cluster = cluster_with(model=model, accelerator=accelerator)
    await reconciler(cluster).reconcile(KEY)
    message = condition(cluster, "CapacityFits")["message"]
    assert condition(cluster, "CapacityFits")["reason"] == "ContextDoesNotFit"
    (longest,) = map(int, re.findall(r"spec\.engine\.maxModelLen to at most (\d+)", message))
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", engine={"maxModelLen": longest})
    await reconciler(cluster).reconcile(KEY)
    assert condition(cluster, "CapacityFits")["status"] == "True"
    assert cluster.names(DEPLOYMENT) == ["chat"]


async def test_a_change_that_does_not_fit_leaves_what_runs_untouched() -> None:
    cluster = cluster_with()
    await reconciler(cluster).reconcile(KEY)
    finish_rollout(cluster)
    before = cluster.find(DEPLOYMENT, "chat")["spec"]
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", accelerator={"type": "cpu", "memory": "512Mi"})
    await reconciler(cluster).reconcile(KEY)
    assert cluster.find(DEPLOYMENT, "chat")["spec"] == before
    assert cluster.names(SERVICE) == ["chat"]
    assert condition(cluster, "Available")["status"] == "True"
    assert condition(cluster, "Ready")["reason"] == "WeightsDoNotFit"
    assert condition(cluster, "Progressing")["reason"] == "HeldBack"


async def test_an_unknown_model_starts_and_says_how_to_get_a_plan() -> None:
    cluster = cluster_with(model=UNKNOWN_MODEL)
    await reconciler(cluster).reconcile(KEY)
    fail(cluster, only_job(cluster, "inspect"), "error: no network", NOW)
    await reconciler(cluster).reconcile(KEY)
    fits = condition(cluster, "CapacityFits")
    assert (fits["status"], fits["reason"]) == ("Unknown", "ModelFactsUnknown")
    assert "spec.model.config" in fits["message"]
    args = cluster.find(DEPLOYMENT, "chat")["spec"]["template"]["spec"]["containers"][0]["args"]
    assert "--max-model-len" not in args
    assert "capacity" not in cluster.find(ATOM_DEPLOYMENT, "chat")["status"]


async def test_unknown_device_memory_is_unknown_and_not_a_guess() -> None:
    model = {"source": "hf://Qwen/Qwen3-8B"}
    cluster = cluster_with(model=model, accelerator={"type": "amd"})
    await reconciler(cluster).reconcile(KEY)
    fits = condition(cluster, "CapacityFits")
    assert (fits["status"], fits["reason"]) == ("Unknown", "AcceleratorMemoryUnknown")
    assert cluster.names(DEPLOYMENT) == ["chat"]


async def test_model_facts_come_from_a_config_map_once_it_exists() -> None:
    model = {**UNKNOWN_MODEL, "configRef": {"name": "shape"}}
    cluster = cluster_with(model=model)
    outcome = await reconciler(cluster).reconcile(KEY)
    assert condition(cluster, "CapacityFits")["reason"] == "ModelConfigNotFound"
    assert outcome.requeue_after_seconds is not None
    shape = {
        "metadata": {"name": "shape", "namespace": "default"},
        "data": {"config.json": json.dumps(TINY_CONFIG)},
    }
    cluster.create(CONFIG_MAP, shape)
    outcome = await reconciler(cluster).reconcile(KEY)
    assert condition(cluster, "CapacityFits")["status"] == "True"
    assert outcome.requeue_after_seconds is None
    assert "shape" in cluster.names(CONFIG_MAP)  # the user's, not ours to prune


@pytest.mark.parametrize(
    ("changes", "reason", "words"),
    [
        (
            {"engine": {"extraArgs": ["--max_model_len=5"]}},
            "ReservedArgument",
            "use spec.engine.maxModelLen",
        ),
        ({"engine": {"extraArgs": ["--server-port", "1"]}}, "ReservedArgument", "leave it out"),
        ({"engine": {"extraArgs": ["--port", "1"]}}, "ReservedArgument", "leave it out"),
        ({"engine": {"extraArgs": ["-dp", "2"]}}, "ReservedArgument", "use spec.parallelism.data"),
        (
            {"engine": {"extraArgs": ["--data_parallel_size=2"]}},
            "ReservedArgument",
            "use spec.parallelism.data",
        ),
        (
            {"parallelism": {"tensor": 16, "nodes": 2}},
            "ImpossibleParallelism",
            "attention heads 4 is not divisible by 16; this model can be split over 2, 4 devices",
        ),
        (
            {"parallelism": {"tensor": 3}},
            "ImpossibleParallelism",
            "attention heads 4 is not divisible by 3; intermediate size 256 is not divisible by 3; "
            "vocabulary size 1024 is not divisible by 3; 2 KV heads can be neither divided nor "
            "replicated over 3; this model can be split over 1, 2, 4 devices",
        ),
        ({"engine": {"maxModelLen": 4096}}, "InvalidSpec", "set at most 2048"),
        (
            {"engine": {"maxNumSeqs": 64, "maxNumBatchedTokens": 32}},
            "InvalidSpec",
            "set at least 64",
        ),
        (
            {"model": {**UNKNOWN_MODEL, "config": {"architectures": ["BloomForCausalLM"]}}},
            "ModelNotSupported",
            "Qwen3ForCausalLM",
        ),
        ({"template": {"spec": {"volumes": [{"emptyDir": {}}]}}}, "InvalidSpec", "lacks name"),
        (
            {"template": {"metadata": {"labels": {"app.kubernetes.io/name": "x"}}}},
            "InvalidSpec",
            "",
        ),
        ({"futureField": 1}, "InvalidSpec", "spec.futureField"),
    ],
)
async def test_a_spec_that_is_not_accepted_starts_nothing(
    changes: dict[str, Any], reason: str, words: str
) -> None:
    cluster = cluster_with(**changes)
    await reconciler(cluster).reconcile(KEY)
    accepted = condition(cluster, "Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", reason)
    assert words in accepted["message"]
    assert cluster.names(DEPLOYMENT) == []
    assert condition(cluster, "Ready")["reason"] == reason


async def test_without_any_image_the_remedy_is_named() -> None:
    cluster = cluster_with()
    await reconciler(cluster, images={}).reconcile(KEY)
    accepted = condition(cluster, "Accepted")
    assert accepted["reason"] == "NoEngineImage"
    assert "defaultEngineImages.cpu" in accepted["message"]


async def test_an_object_of_somebody_else_is_not_taken_over() -> None:
    cluster = cluster_with()
    theirs = {
        "metadata": {"name": "chat", "namespace": "default"},
        "spec": {"ports": [{"port": 80}]},
    }
    cluster.create(SERVICE, theirs)
    outcome = await reconciler(cluster).reconcile(KEY)
    assert cluster.find(SERVICE, "chat")["spec"] == theirs["spec"]
    progressing = condition(cluster, "Progressing")
    assert (progressing["status"], progressing["reason"]) == ("False", "NameConflict")
    assert cluster.names(DEPLOYMENT) == []
    assert outcome.requeue_after_seconds is not None
    del cluster.objects[SERVICE, "default", "chat"]
    await reconciler(cluster).reconcile(KEY)
    assert cluster.names(DEPLOYMENT) == ["chat"]


async def test_orphans_of_a_former_life_are_adopted() -> None:
    cluster = cluster_with()
    await reconciler(cluster).reconcile(KEY)
    for kind in (SERVICE, DEPLOYMENT):
        del cluster.find(kind, "chat")["metadata"]["ownerReferences"]
    await reconciler(cluster).reconcile(KEY)
    uid = cluster.find(ATOM_DEPLOYMENT, "chat")["metadata"]["uid"]
    assert cluster.find(SERVICE, "chat")["metadata"]["ownerReferences"][0]["uid"] == uid


async def test_a_refused_child_is_reported_with_the_servers_words() -> None:
    cluster = cluster_with()
    cluster.refused_kinds[DEPLOYMENT] = "spec.template.spec.volumes[3].name: Required value"
    outcome = await reconciler(cluster).reconcile(KEY)
    degraded = condition(cluster, "Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "ApplyRefused")
    assert "Required value" in condition(cluster, "Ready")["message"]
    assert outcome.requeue_after_seconds is not None


async def test_the_last_words_of_a_crashing_container_reach_the_conditions() -> None:
    cluster = cluster_with()
    await reconciler(cluster).reconcile(KEY)
    finish_rollout(cluster, ready=0)
    log = "│ a table │\n" * 100 + "error: /models/tiny is missing\n"
    ended = {"reason": "Error", "exitCode": 1, "message": log}
    crashed = {
        "name": "engine",
        "ready": False,
        "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}},
        "lastState": {"terminated": ended},
    }
    cluster.put_pod(pod(cluster, ready=False, containerStatuses=[crashed]))
    await reconciler(cluster).reconcile(KEY)
    degraded = condition(cluster, "Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "PodFailing")
    assert "exit code 1): │ a table │ |" in degraded["message"]
    assert degraded["message"].endswith("error: /models/tiny is missing")
    assert len(degraded["message"]) < 400
    assert condition(cluster, "Ready")["reason"] == "PodFailing"
    recovered = {**crashed, "ready": True, "state": {"running": {}}}
    cluster.put_pod(pod(cluster, containerStatuses=[recovered]))
    finish_rollout(cluster)
    await reconciler(cluster).reconcile(KEY)
    assert condition(cluster, "Degraded")["status"] == "False"
    assert condition(cluster, "Ready")["status"] == "True"


async def test_pods_that_the_namespace_refuses_are_reported() -> None:
    cluster = cluster_with()
    await reconciler(cluster).reconcile(KEY)
    finish_rollout(cluster, ready=0)
    status = cluster.find(DEPLOYMENT, "chat")["status"]
    message = "pods are forbidden: exceeded quota"
    failure = {"type": "ReplicaFailure", "reason": "FailedCreate", "message": message}
    status.update(replicas=0, conditions=[{**failure, "status": "True"}])
    await reconciler(cluster).reconcile(KEY)
    ready = condition(cluster, "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "PodsRefused")
    assert "exceeded quota" in ready["message"]


async def test_a_rollout_beyond_its_deadline_is_reported() -> None:
    cluster = cluster_with()
    await reconciler(cluster).reconcile(KEY)
    finish_rollout(cluster, ready=0)
    late = {"type": "Progressing", "reason": "ProgressDeadlineExceeded", "message": "too late"}
    cluster.find(DEPLOYMENT, "chat")["status"]["conditions"] = [{**late, "status": "False"}]
    await reconciler(cluster).reconcile(KEY)
    assert condition(cluster, "Progressing")["reason"] == "DeadlineExceeded"
    assert "too late" in condition(cluster, "Ready")["message"]
    degraded = condition(cluster, "Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "DeadlineExceeded")


async def test_an_image_that_cannot_be_pulled_is_a_failing_pod() -> None:
    cluster = cluster_with()
    await reconciler(cluster).reconcile(KEY)
    waiting = {"reason": "ImagePullBackOff", "message": "not found"}
    state = {"name": "engine", "ready": False, "state": {"waiting": waiting}}
    cluster.put_pod(pod(cluster, ready=False, containerStatuses=[state]))
    await reconciler(cluster).reconcile(KEY)
    assert "ImagePullBackOff: not found" in condition(cluster, "Degraded")["message"]


async def test_a_pod_without_a_node_says_what_the_scheduler_said() -> None:
    cluster = cluster_with()
    await reconciler(cluster).reconcile(KEY)
    message = "0/3 nodes are available: 3 Insufficient amd.com/gpu."
    pending = pod(cluster, ready=False)
    pending["status"]["conditions"] = [
        {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": message,
        }
    ]
    cluster.put_pod(pending)
    await reconciler(cluster).reconcile(KEY)
    scheduled = condition(cluster, "Scheduled")
    assert (scheduled["status"], scheduled["reason"]) == ("False", "Unschedulable")
    assert message in condition(cluster, "Ready")["message"]


async def test_a_pod_that_a_quota_holds_back_says_whose_gate_it_is() -> None:
    cluster = cluster_with()
    await reconciler(cluster).reconcile(KEY)
    cluster.put_pod(gated_pod(cluster, queue="models"))
    await reconciler(cluster).reconcile(KEY)
    scheduled = condition(cluster, "Scheduled")
    assert (scheduled["status"], scheduled["reason"]) == ("False", "Unschedulable")
    assert "in the queue models" in scheduled["message"]
    assert "kueue.x-k8s.io/admission" in scheduled["message"]
    assert condition(cluster, "Ready")["message"] == scheduled["message"]


@pytest.mark.parametrize("decision", ["QuotaReserved", "Admitted"])
async def test_a_pod_that_a_quota_holds_back_says_what_the_quota_lacks(decision: str) -> None:
    cluster, lacking = cluster_with(), "resource ephemeral-storage unavailable in ClusterQueue"
    await reconciler(cluster).reconcile(KEY)
    held = gated_pod(cluster, queue="models")
    held["metadata"]["uid"] = "1234"
    cluster.put_pod(held)
    workload = {
        "metadata": {"name": "pod-chat-1", "labels": {"kueue.x-k8s.io/job-uid": "1234"}},
        "status": {"conditions": [{"type": decision, "status": "False", "message": lacking}]},
    }
    cluster.objects[QUOTA_WORKLOAD, "default", "pod-chat-1"] = workload
    outcome = await reconciler(cluster).reconcile(KEY)
    scheduled = condition(cluster, "Scheduled")
    assert scheduled["message"].endswith(f"kueue.x-k8s.io/admission: {lacking}")
    assert outcome.requeue_after_seconds is not None, "no event tells of the quota"


async def test_a_stopping_pod_counts_for_nothing() -> None:
    cluster = cluster_with()
    await reconciler(cluster).reconcile(KEY)
    stopping = pod(cluster, ready=False)
    stopping["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z"
    cluster.put_pod(stopping)
    await reconciler(cluster).reconcile(KEY)
    assert cluster.names(POD) == ["chat-1"]
    assert condition(cluster, "Scheduled")["reason"] == "NoPods"
