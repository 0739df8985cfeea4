"""A model is looked at and fetched before pods start, once, and what runs goes on meanwhile."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from atom_operator.cluster.errors import TransientError
from atom_operator.domain import (
    ATOM_DEPLOYMENT,
    CONFIG_MAP,
    DEPLOYMENT,
    JOB,
    VOLUME_CLAIM,
    EngineHealth,
    LoadProgress,
    Manifest,
    ObjectKey,
)
from atom_operator.webhook.admission_review import parse_review
from atom_operator.webhook.reviewer import Reviewer
from tests.support.in_memory_cluster.rollouts import finish_rollout
from tests.support.operator.builders_admission import creation
from tests.support.operator.builders_operator import (
    KEY,
    NOW,
    TINY_CONFIG,
    atom_deployment,
    cluster_with,
    condition,
    gpu_node,
    reconciler,
)
from tests.support.operator.fake_cluster import FakeCluster
from tests.support.operator.fake_engines import FakeEngines
from tests.support.operator.jobs import fail, forget_pods, job_pod, only_job, report_config, succeed

PRIVATE = {"source": "hf://acme/private", "tokenSecretRef": {"name": "hub"}}
KNOWN = {"source": "hf://Qwen/Qwen3-0.6B", "revision": "v1", "tokenSecretRef": {"name": "hub"}}
CACHE = {"weights": {"claim": "models"}}
ROOM = {"type": "cpu", "memory": "16Gi"}
CACHED: dict[str, Any] = {"model": KNOWN, "cache": CACHE, "accelerator": ROOM}


async def reconcile(cluster: FakeCluster, **more: Any) -> float | None:
    outcome = await reconciler(cluster, **more).reconcile(KEY)
    return outcome.requeue_after_seconds


def container(cluster: FakeCluster) -> dict[str, Any]:
    spec = cluster.find(DEPLOYMENT, "chat")["spec"]["template"]["spec"]
    return dict(spec["containers"][0])


def claim(*modes: str, name: str = "models") -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"accessModes": list(modes)},
    }


# ---- a look at the model ------------------------------------------------------------------------


async def test_an_unknown_model_is_looked_at_before_anything_starts() -> None:
    cluster = cluster_with(model=PRIVATE)
    again = await reconcile(cluster)
    assert again is not None
    job = only_job(cluster, "chat-inspect")
    assert cluster.names(DEPLOYMENT) == []
    loaded = condition(cluster, "ModelLoaded")
    assert (loaded["status"], loaded["reason"]) == ("False", "InspectingModel")
    (step,) = job["spec"]["template"]["spec"]["containers"]
    assert step["command"][-2:] == ["--model", "acme/private"]
    (token,) = [item for item in step["env"] if item["name"] == "HF_TOKEN"]
    assert token["valueFrom"]["secretKeyRef"] == {"name": "hub", "key": "token"}
    report_config(cluster, job, TINY_CONFIG)
    await reconcile(cluster)
    fits = condition(cluster, "CapacityFits")
    assert (fits["status"], "the model's own config.json" in fits["message"]) == ("True", True)
    assert cluster.names(DEPLOYMENT) == ["chat"]


async def test_what_was_found_is_kept_and_restarts_nothing() -> None:
    cluster = cluster_with(model=PRIVATE)
    await reconcile(cluster)
    report_config(cluster, only_job(cluster, "inspect"), TINY_CONFIG)
    await reconcile(cluster)
    assert cluster.names(CONFIG_MAP) == ["chat-model", "chat-plan"]
    template = cluster.find(DEPLOYMENT, "chat")["spec"]["template"]
    forget_pods(cluster)
    for name in cluster.names(JOB):  # its time to live has passed
        del cluster.objects[JOB, "default", name]
    await reconcile(cluster)
    assert cluster.names(JOB) == []
    assert cluster.find(DEPLOYMENT, "chat")["spec"]["template"] == template
    assert "--max-model-len" not in template["spec"]["containers"][0]["args"]
    assert condition(cluster, "CapacityFits")["status"] == "True"


async def test_another_source_is_looked_at_anew() -> None:
    cluster = cluster_with(model=PRIVATE)
    await reconcile(cluster)
    report_config(cluster, only_job(cluster, "inspect"), TINY_CONFIG)
    await reconcile(cluster)
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", model={"source": "hf://acme/other"})
    await reconcile(cluster)
    job = only_job(cluster, "inspect")
    assert "acme/other" in job["spec"]["template"]["spec"]["containers"][0]["command"]
    assert condition(cluster, "CapacityFits")["status"] == "Unknown"


async def test_a_model_that_turns_out_too_large_is_not_started() -> None:
    cluster = cluster_with(model=PRIVATE)
    await reconcile(cluster)
    large = {**TINY_CONFIG, "hidden_size": 8192, "num_hidden_layers": 80}
    report_config(cluster, only_job(cluster, "inspect"), large)
    await reconcile(cluster)
    assert condition(cluster, "CapacityFits")["reason"] == "WeightsDoNotFit"
    assert cluster.names(DEPLOYMENT) == []


async def test_a_look_that_fails_leaves_the_sizing_to_the_engine() -> None:
    cluster = cluster_with(model=PRIVATE)
    await reconcile(cluster)
    fail(cluster, only_job(cluster, "inspect"), "error: no network", NOW)
    await reconcile(cluster)
    assert cluster.names(DEPLOYMENT) == ["chat"]
    assert condition(cluster, "CapacityFits")["reason"] == "ModelFactsUnknown"
    before = cluster.find(DEPLOYMENT, "chat")["spec"]["template"]
    # A later look succeeds: the plan improves, and the pods stay as they are.
    later = NOW + timedelta(minutes=11)
    await reconcile(cluster, now=later)
    await reconcile(cluster, now=later)
    report_config(cluster, only_job(cluster, "inspect"), TINY_CONFIG)
    await reconcile(cluster, now=later)
    assert condition(cluster, "CapacityFits")["status"] == "True"
    assert cluster.find(DEPLOYMENT, "chat")["spec"]["template"] == before


@pytest.mark.parametrize("answer", [{}, {"config": "!"}, {"config": "AAAA"}, {"config": 7}])
async def test_an_answer_that_is_none_is_no_guess(answer: dict[str, Any]) -> None:
    cluster = cluster_with(model=PRIVATE)
    await reconcile(cluster)
    succeed(cluster, only_job(cluster, "inspect"), answer)
    await reconcile(cluster)
    assert condition(cluster, "CapacityFits")["status"] == "Unknown"
    assert cluster.names(DEPLOYMENT) == ["chat"]


async def test_a_model_on_a_claim_is_looked_at_there() -> None:
    cluster = cluster_with(model={"source": "pvc://models/acme/private"})
    await reconcile(cluster)
    spec = only_job(cluster, "inspect")["spec"]["template"]["spec"]
    assert spec["containers"][0]["command"][-1] == "/models/models/acme/private"
    (mount,) = [m for m in spec["containers"][0]["volumeMounts"] if m["name"] == "models"]
    assert (mount["mountPath"], mount["readOnly"]) == ("/models/models", True)


async def test_job_pods_are_nobody_elses() -> None:
    cluster = cluster_with(model=PRIVATE)
    await reconcile(cluster)
    job = only_job(cluster, "inspect")
    job_pod(cluster, job, phase="Running")
    await reconcile(cluster)
    labels = job["spec"]["template"]["metadata"]["labels"]
    assert "serving.atom.dev/deployment" not in labels
    assert "app.kubernetes.io/instance" not in labels
    assert condition(cluster, "Scheduled")["reason"] == "NoPods"


# ---- weights ------------------------------------------------------------------------------------


async def test_weights_are_fetched_by_a_job_before_pods_mount_them() -> None:
    cluster = cluster_with(**CACHED)
    await reconcile(cluster)
    assert cluster.names(DEPLOYMENT) == []
    job = only_job(cluster, "atom-weights")
    spec = job["spec"]["template"]["spec"]
    folder = "/models/models/Qwen--Qwen3-0.6B/v1"
    command = spec["containers"][0]["command"]
    assert command[2:] == [
        "atom.entrypoints.download",
        "--model",
        "Qwen/Qwen3-0.6B",
        "--revision",
        "v1",
        "--folder",
        folder,
        "--status-port",
        "8000",
    ]
    (volume,) = [v for v in spec["volumes"] if v["name"] == "models"]
    assert volume["persistentVolumeClaim"] == {"claimName": "models", "readOnly": False}
    succeed(cluster, job, {"commit": "c0ffee"})
    await reconcile(cluster)
    engine = container(cluster)
    arguments = " ".join(engine["args"])
    assert f"--model {folder} --served-model-name Qwen3-0.6B" in arguments
    assert "--revision" not in arguments
    assert not [item for item in engine["env"] if item["name"] == "HF_TOKEN"]
    (mount,) = [m for m in engine["volumeMounts"] if m["name"] == "models"]
    assert mount["readOnly"] is True


async def test_the_download_tells_how_far_it_is() -> None:
    cluster = cluster_with(**CACHED)
    await reconcile(cluster)
    job_pod(cluster, only_job(cluster, "weights"), phase="Running", podIP="10.0.0.5")
    progress = LoadProgress("downloading weights", 0.25, 2**30, 2**20, 1.0)
    engines = FakeEngines(healths={"10.0.0.5": EngineHealth("starting", "", progress)})
    again = await reconcile(cluster, engines=engines)
    loaded = condition(cluster, "ModelLoaded")
    assert loaded["reason"] == "DownloadingWeights"
    assert "25% of 1 GiB at 1 MiB/s, about 12 min left" in loaded["message"]
    assert condition(cluster, "Progressing")["status"] == "True"
    assert again == 10
    stalled = LoadProgress("downloading weights", 0.25, 2**30, 2**20, 1000.0, stalled=True)
    engines.healths["10.0.0.5"] = EngineHealth("starting", "", stalled)
    await reconcile(cluster, engines=engines)
    assert condition(cluster, "ModelLoaded")["reason"] == "DownloadStalled"


async def test_a_failed_download_says_why_and_is_tried_again_after_a_while() -> None:
    cluster = cluster_with(**CACHED)
    await reconcile(cluster)
    first = only_job(cluster, "weights")["metadata"]["uid"]
    fail(cluster, only_job(cluster, "weights"), "error: access is restricted (HTTP 403)", NOW)
    again = await reconcile(cluster)
    degraded = condition(cluster, "Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "DownloadFailed")
    assert "access is restricted (HTTP 403)" in degraded["message"]
    assert again is not None
    assert only_job(cluster, "weights")["metadata"]["uid"] == first
    forget_pods(cluster)
    for _ in range(2):
        await reconcile(cluster, now=NOW + timedelta(minutes=11))
    assert only_job(cluster, "weights")["metadata"]["uid"] != first
    assert condition(cluster, "Degraded")["status"] == "False"


async def test_a_failed_download_is_tried_at_once_with_another_secret() -> None:
    cluster = cluster_with(**CACHED)
    await reconcile(cluster)
    fail(cluster, only_job(cluster, "weights"), "error: no token is given", NOW)
    await reconcile(cluster)
    model = {**KNOWN, "tokenSecretRef": {"name": "right"}}
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", model=model)
    for _ in range(2):
        await reconcile(cluster)
    env = only_job(cluster, "weights")["spec"]["template"]["spec"]["containers"][0]["env"]
    (token,) = [item for item in env if item["name"] == "HF_TOKEN"]
    assert token["valueFrom"]["secretKeyRef"]["name"] == "right"


async def test_what_runs_goes_on_while_another_revision_is_fetched() -> None:
    cluster = cluster_with(**CACHED)
    cluster.create(VOLUME_CLAIM, claim("ReadWriteMany"))
    await reconcile(cluster)
    succeed(cluster, only_job(cluster, "weights"), {})
    await reconcile(cluster)
    finish_rollout(cluster)
    before = container(cluster)
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", model={**KNOWN, "revision": "v2"})
    await reconcile(cluster)
    assert container(cluster) == before
    assert "what runs goes on" in condition(cluster, "Progressing")["message"]
    assert condition(cluster, "Available")["status"] == "True"
    job = only_job(cluster, "weights")  # the one of v1 is gone: nobody asks for it
    succeed(cluster, job, {})
    await reconcile(cluster)
    assert "/models/models/Qwen--Qwen3-0.6B/v2" in container(cluster)["args"]


async def test_a_lost_job_does_not_stop_what_runs_and_is_made_again() -> None:
    cluster = cluster_with(**CACHED)
    cluster.create(VOLUME_CLAIM, claim("ReadWriteMany"))
    await reconcile(cluster)
    succeed(cluster, only_job(cluster, "weights"), {})
    await reconcile(cluster)
    finish_rollout(cluster)
    del cluster.objects[JOB, "default", only_job(cluster, "weights")["metadata"]["name"]]
    await reconcile(cluster)
    assert condition(cluster, "Ready")["status"] == "True"
    assert only_job(cluster, "weights")


async def test_deployments_of_one_model_share_its_download() -> None:
    cluster = cluster_with(**CACHED)
    cluster.create(ATOM_DEPLOYMENT, atom_deployment("code", **CACHED))
    await reconcile(cluster)
    await reconciler(cluster).reconcile(ObjectKey("default", "code"))
    job = only_job(cluster, "weights")
    succeed(cluster, job, {})
    await reconcile(cluster)
    await reconciler(cluster).reconcile(ObjectKey("default", "code"))
    assert cluster.names(DEPLOYMENT) == ["chat", "code"]


async def test_what_does_not_fit_is_not_fetched() -> None:
    cluster = cluster_with(
        model={"source": "hf://meta-llama/Llama-3.3-70B-Instruct"},
        cache=CACHE,
        accelerator={"type": "amd", "product": "MI210"},
    )
    await reconcile(cluster)
    assert condition(cluster, "CapacityFits")["reason"] == "WeightsDoNotFit"
    assert cluster.names(JOB) == []


async def test_a_job_that_could_not_be_created_is_created_by_the_next_run() -> None:
    cluster = cluster_with(**CACHED)
    cluster.fail_on(1, TransientError("the API server went away"))
    with pytest.raises(TransientError):
        await reconcile(cluster)
    await reconcile(cluster)
    assert only_job(cluster, "weights")
    assert condition(cluster, "ModelLoaded")["reason"] == "DownloadingWeights"


# ---- claims -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("modes", "changes", "accepted"),
    [
        (("ReadWriteOnce",), {"replicas": 2}, False),
        (("ReadWriteOncePod",), {"replicas": 2}, False),
        (("ReadWriteOnce",), {"replicas": 1}, True),
        (("ReadWriteMany",), {"replicas": 2}, True),
        (("ReadWriteOnce", "ReadOnlyMany"), {"replicas": 2}, True),
        (
            ("ReadWriteOnce",),
            {
                "replicas": 2,
                "template": {"spec": {"nodeSelector": {"kubernetes.io/hostname": "a"}}},
            },
            True,
        ),
    ],
)
async def test_replicas_that_cannot_share_their_claim_are_refused(
    modes: tuple[str, ...], changes: dict[str, Any], accepted: bool
) -> None:
    source = {"source": "pvc://models/tiny", "config": TINY_CONFIG}
    cluster = cluster_with(model=source, **changes)
    cluster.nodes = [gpu_node("a"), gpu_node("b")]
    cluster.create(VOLUME_CLAIM, claim(*modes))
    await reconcile(cluster)
    found = condition(cluster, "Accepted")
    assert (found["status"] == "True") is accepted
    if not accepted:
        assert found["reason"] == "ClaimNotShareable"
        assert "ReadWriteMany" in found["message"]
        assert cluster.names(DEPLOYMENT) == []


@pytest.mark.parametrize(
    ("modes", "changes", "words"),
    [
        (("ReadWriteOnce",), {"replicas": 2}, "one node can mount it, and 2 pods"),
        (("ReadWriteOnce",), {"autoscaling": {"maxReplicas": 3, "method": "HPA"}}, "and 3 pods"),
        (("ReadOnlyMany",), {}, "pods write to it"),
        (("ReadWriteOnce",), {}, None),
        (("ReadWriteMany",), {"replicas": 2}, None),
    ],
)
async def test_replicas_that_cannot_share_their_compile_cache_are_refused(
    modes: tuple[str, ...], changes: dict[str, Any], words: str | None
) -> None:
    cluster = cluster_with(cache={"compile": {"claim": "kernels"}}, **changes)
    cluster.nodes = [gpu_node("a"), gpu_node("b")]
    cluster.create(VOLUME_CLAIM, claim(*modes, name="kernels"))
    await reconcile(cluster)
    found = condition(cluster, "Accepted")
    if words is None:
        assert found["status"] == "True"
    else:
        assert found["reason"] == "ClaimNotShareable"
        assert found["message"].startswith("spec.cache.compile.claim: claim kernels is ")
        assert words in found["message"]
        assert "use a claim that is ReadWriteMany" in found["message"]
        assert "or ReadOnlyMany" not in found["message"]


_ROUTE: dict[str, Any] = {"httpRoute": {"parentRefs": [{"name": "gate"}]}}
_OTHER_IMAGE = {"change": {"engine": {"image": "registry.test/atom:2"}}, "weight": 10}
_VOLUME = {"name": "big", "persistentVolumeClaim": {"claimName": "models"}}
_BY_CLAIM: dict[str, dict[str, Any]] = {
    "source": {"model": {"source": "pvc://models/tiny", "config": TINY_CONFIG}},
    "weights": {
        "model": {"source": "hf://Qwen/Qwen3-0.6B"},
        "accelerator": {"type": "cpu", "memory": "16Gi"},
        "cache": {"weights": {"claim": "models"}},
    },
    "compiled": {"cache": {"compile": {"claim": "models"}}},
    "adapters": {"engine": {"lora": {"claims": ["models"]}}},
    "overlay": {"template": {"spec": {"volumes": [_VOLUME]}}},
}


@pytest.mark.parametrize("by", _BY_CLAIM)
@pytest.mark.parametrize(
    ("mode", "nodes", "accepted"),
    [
        ("ReadWriteOnce", 2, False),
        ("ReadWriteOncePod", 2, False),
        ("ReadWriteOncePod", 1, False),
        ("ReadWriteOnce", 1, True),
        ("ReadWriteMany", 2, True),
    ],
)
async def test_a_canary_that_cannot_mount_the_others_claim_is_refused(
    by: str, mode: str, nodes: int, accepted: bool
) -> None:
    changes = {"gateway": _ROUTE, "canary": _OTHER_IMAGE, **_BY_CLAIM[by]}
    cluster = cluster_with(**changes)
    cluster.nodes = [gpu_node(f"node-{number}") for number in range(nodes)]
    cluster.create(VOLUME_CLAIM, claim(mode))
    await reconcile(cluster)
    found = condition(cluster, "Accepted")
    assert (found["status"] == "True") is accepted, found
    reviewer = Reviewer(cluster, reconciler(cluster).decider, answer_seconds=60)
    verdict = await reviewer.review(parse_review(creation(dry_run=False, **changes)))
    assert (verdict.refusal is None) is accepted
    for text in () if accepted else (found["message"], verdict.refusal or ""):
        assert f"spec.canary: claim models is {mode}" in text
        assert "use a claim that is ReadWriteMany" in text


async def test_a_canary_with_weights_on_a_claim_of_its_own_may_stand_beside_the_others() -> None:
    change = {"model": {"source": "pvc://others/tiny", "config": TINY_CONFIG}}
    cluster = cluster_with(
        gateway=_ROUTE, canary={"change": change, "weight": 10}, **_BY_CLAIM["source"]
    )
    cluster.nodes = [gpu_node("a"), gpu_node("b")]
    for name in ("models", "others"):
        cluster.create(VOLUME_CLAIM, claim("ReadWriteOnce", name=name))
    await reconcile(cluster)
    assert condition(cluster, "Accepted")["status"] == "True"


async def test_on_a_single_node_every_claim_is_shareable() -> None:
    source = {"source": "pvc://models/tiny", "config": TINY_CONFIG}
    cluster = cluster_with(model=source, replicas=2)
    cluster.nodes = [gpu_node("a")]
    cluster.create(VOLUME_CLAIM, claim("ReadWriteOnce"))
    await reconcile(cluster)
    assert condition(cluster, "Accepted")["status"] == "True"


async def test_a_claim_for_one_node_leaves_no_room_for_a_spare_pod() -> None:
    source = {"source": "pvc://models/tiny", "config": TINY_CONFIG}
    cluster = cluster_with(model=source)
    cluster.nodes = [gpu_node("a"), gpu_node("b")]
    cluster.create(VOLUME_CLAIM, claim("ReadWriteOnce"))
    await reconcile(cluster)
    finish_rollout(cluster)
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", engine={"maxModelLen": 1024})
    await reconcile(cluster)
    rollout = cluster.find(ATOM_DEPLOYMENT, "chat")["status"]["rollout"]
    assert rollout["strategy"] == "InPlace"
    assert "claim models can be mounted on one node only" in rollout["reason"]
