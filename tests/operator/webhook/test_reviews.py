"""What the webhook says about an AtomDeployment: plan, changes, refusals."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from atom_operator.cluster.errors import RefusedError, TransientError
from atom_operator.domain import ATOM_DEPLOYMENT, DEPLOYMENT, Kind, Manifest
from atom_operator.kinds import LEADER_WORKER_SET
from atom_operator.webhook.admission_review import (
    ReviewError,
    Verdict,
    answer,
    parse_review,
    shortened,
)
from atom_operator.webhook.reviewer import Reviewer
from tests.support.in_memory_cluster.rollouts import finish_rollout
from tests.support.operator.builders_admission import creation, review_body
from tests.support.operator.builders_operator import (
    KEY,
    TINY_CONFIG,
    atom_deployment,
    cluster_with,
    gpu_node,
    gpu_pod,
    pod_of,
    reconciler,
)
from tests.support.operator.fake_cluster import FakeCluster
from tests.support.virtual_time import run_virtually

UNKNOWN_FAMILY = {**TINY_CONFIG, "architectures": ["X"]}
AMD: dict[str, Any] = {
    "model": {"source": "hf://Qwen/Qwen3-8B"},
    "accelerator": {"type": "amd", "product": "MI300X"},
}


async def review(cluster: FakeCluster, body: dict[str, Any]) -> Verdict:
    return await Reviewer(cluster, reconciler(cluster).decider, answer_seconds=60).review(
        parse_review(body)
    )


async def warnings(cluster: FakeCluster, body: dict[str, Any]) -> list[str]:
    verdict = await review(cluster, body)
    assert verdict.refusal is None
    assert not cluster.writes
    return list(verdict.warnings)


async def served(**changes: Any) -> FakeCluster:
    """A cluster in which `chat` runs; what it wrote so far is forgotten."""
    cluster = cluster_with(**changes)
    cluster.nodes = [gpu_node("a", 8)]
    await reconciler(cluster).reconcile(KEY)
    finish_rollout(cluster)
    cluster.writes.clear()
    return cluster


def update(cluster: FakeCluster, *, dry_run: bool = True, **changes: Any) -> dict[str, Any]:
    """Somebody applies `chat` anew with other fields."""
    old = cluster.find(ATOM_DEPLOYMENT, "chat")
    new = {**old, "metadata": dict(old["metadata"]), "spec": {**old["spec"], **changes}}
    return review_body(new, dict(old), dry_run=dry_run)


async def test_a_dry_run_prints_the_plan() -> None:
    cluster = FakeCluster(nodes=[gpu_node("a", 8)])
    lines = await warnings(cluster, creation(replicas=2, **AMD))
    assert "model: Qwen/Qwen3-8B" in lines
    assert any(line.startswith("fits: yes") for line in lines)
    assert "at 40,960 tokens: 26 sequences at once" in lines
    assert "nodes: 2 of 2 new pods find a place now" in lines


async def test_a_dry_run_of_what_no_engine_here_runs_prints_what_it_would_need() -> None:
    # Every family that is sized is run: what is left are forms of checkpoints.
    weights = {"num_bits": 8, "type": "float", "strategy": "channel"}
    wide_inputs = {
        "quant_method": "compressed-tensors",
        "config_groups": {"a": {"weights": weights}},
    }
    config = {**TINY_CONFIG, "quantization_config": wide_inputs}
    model = {"source": "hf://a/b", "config": config}
    lines = await warnings(FakeCluster(), creation(**{**AMD, "model": model}))
    assert lines[0].startswith(
        "will not be accepted: spec.model.config: the format fp8 with a scale"
    )
    heads = "2 layers of full attention x 256 B = 512 B"
    assert f"on an engine that runs it, KV of a token: {heads}" in lines
    (line,) = await warnings(FakeCluster(), creation(dry_run=False, **{**AMD, "model": model}))
    assert line == lines[0]


async def test_an_object_that_is_only_reviewed_leaves_no_plan_behind() -> None:
    cluster = FakeCluster(nodes=[gpu_node("a", 8)])
    decider = reconciler(cluster).decider
    reviewer = Reviewer(cluster, decider, answer_seconds=60)
    verdict = await reviewer.review(parse_review(creation(replicas=2, **AMD)))
    assert verdict.warnings
    assert not decider.plans.known


async def test_a_real_apply_says_only_what_stands_in_the_way() -> None:
    cluster = FakeCluster(nodes=[gpu_node("a", 8)])
    assert await warnings(cluster, creation(dry_run=False, **AMD)) == []
    full = FakeCluster(nodes=[gpu_node("a", 8)])
    full.put_pod(gpu_pod("x", "a", 8))
    (line,) = await warnings(full, creation(dry_run=False, **AMD))
    assert line.startswith("nodes: 0 of 1 new pods find a place now; a pod needs 1 amd.com/gpu")
    assert "a 0 of 8" in line


async def test_what_does_not_fit_is_said_and_not_refused() -> None:
    # It is a matter of the nodes, and Git may bring those later.
    model = {"source": "hf://meta-llama/Llama-3.3-70B-Instruct"}
    accelerator = {"type": "amd", "product": "MI210"}
    body = creation(dry_run=False, model=model, accelerator=accelerator)
    (line,) = await warnings(FakeCluster(), body)
    assert line.startswith("fits: False, the weights (")
    assert "spec.accelerator.product" in line


async def test_an_update_says_what_changes_for_whom() -> None:
    cluster = await served(**AMD)
    body = update(cluster, engine={"maxModelLen": 8192, "gpuMemoryUtilization": 0.5})
    lines = await warnings(cluster, body)
    changes = [line for line in lines if line.startswith(("changes", "rollout"))]
    assert changes[0].startswith("changes KV cache: 1,090,832 -> ")
    assert any(line.startswith("changes sequences at 8,192 tokens: 133 -> ") for line in changes)
    assert "changes sequences at 40,960 tokens: no longer served" in changes
    assert changes[-2].startswith("rollout: every pod is replaced, Surge: node a has 7")
    assert changes[-1] == (
        "rollout cost: 1 more amd.com/gpu while it lasts; all replicas go on serving"
    )


async def test_the_announced_strategy_is_the_one_that_the_operator_takes() -> None:
    cluster = await served(**AMD)
    cluster.put_pod(pod_of(cluster.find(DEPLOYMENT, "chat"), "chat-1", "a"))
    cluster.put_pod(gpu_pod("other", "a", 7))
    body = update(cluster, engine={"maxModelLen": 8192})
    lines = await warnings(cluster, body)
    (said,) = [line for line in lines if line.startswith("rollout: ")]
    (cost,) = [line for line in lines if line.startswith("rollout cost: ")]
    assert cost.startswith("rollout cost: no spare amd.com/gpu; one replica less")
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", engine={"maxModelLen": 8192})
    await reconciler(cluster).reconcile(KEY)
    rollout = cluster.find(ATOM_DEPLOYMENT, "chat")["status"]["rollout"]
    assert said == (f"rollout: every pod is replaced, {rollout['strategy']}: {rollout['reason']}")


async def test_scaling_restarts_nothing_and_says_what_it_takes() -> None:
    cluster = await served(**AMD)
    cluster.put_pod(pod_of(cluster.find(DEPLOYMENT, "chat"), "chat-1", "a"))
    lines = await warnings(cluster, update(cluster, dry_run=False, replicas=3))
    assert lines == [
        "changes replicas: 1 -> 3, 1 -> 3 amd.com/gpu",
        "rollout: none; no pod is restarted",
    ]


async def test_a_change_that_does_not_fit_says_that_what_runs_goes_on() -> None:
    cluster = await served(**AMD)
    change = {
        "model": {"source": "hf://meta-llama/Llama-3.3-70B-Instruct"},
        "accelerator": {"type": "amd", "product": "MI210"},
    }
    lines = await warnings(cluster, update(cluster, dry_run=False, **change))
    assert any(line.startswith("changes fits: True -> False") for line in lines)
    assert lines[-1] == "rollout: none; what runs goes on as it is"


async def test_labels_and_status_are_nobodys_concern() -> None:
    cluster = cluster_with(engine={"extraArgs": ["--model=x"]})  # refused, were it new
    reads = cluster.pod_reads
    body = update(cluster)
    body["request"]["object"]["metadata"]["labels"] = {"team": "a"}
    assert await warnings(cluster, body) == []
    assert cluster.pod_reads == reads


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"engine": {"extraArgs": ["--model=evil"]}}, "spec.engine.extraArgs[0]"),
        ({"parallelism": {"tensor": 3}}, "spec.parallelism.tensor"),
        ({"engine": {"maxModelLen": 4096}}, "set at most 2048"),
        ({"template": {"spec": {"containers": "many"}}}, "spec.template"),
        ({"template": {"status": {}}}, "spec.template.status"),
        (
            {"model": {"source": "path:///m", "config": {**TINY_CONFIG, "num_key_value_heads": 3}}},
            "spec.model.config",
        ),
    ],
)
async def test_what_can_never_run_is_refused_with_field_and_remedy(
    changes: dict[str, Any], words: str
) -> None:
    verdict = await review(FakeCluster(), creation(**changes))
    assert verdict.refusal is not None
    assert words in verdict.refusal


async def test_what_other_objects_may_still_mend_is_a_warning() -> None:
    reference = {"name": "not-yet", "key": "config.json"}
    body = creation(dry_run=False, model={"source": "path:///m", "configRef": reference})
    (line,) = await warnings(FakeCluster(), body)
    assert "ConfigMap not-yet" in line
    cluster = FakeCluster()
    reviewer = Reviewer(cluster, reconciler(cluster, images={}).decider, answer_seconds=60)
    verdict = await reviewer.review(parse_review(creation(dry_run=False)))
    assert verdict.refusal is None
    assert verdict.warnings[0].startswith("will not be accepted: spec.engine.image")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"parallelism": {"tensor": 4, "nodes": 2}}, "spec.parallelism.nodes"),  # its CRD
        ({"autoscaling": {"minReplicas": 0, "maxReplicas": 4}}, "spec.autoscaling"),  # its CRD
        ({"model": {"source": "path:///m", "config": UNKNOWN_FAMILY}}, "spec.model.config"),
    ],
)
async def test_what_the_chart_or_a_crd_may_still_bring_is_a_warning(
    changes: dict[str, Any], words: str
) -> None:
    cluster = FakeCluster(unserved_kinds={LEADER_WORKER_SET})
    lines = await warnings(cluster, creation(dry_run=False, **{**AMD, **changes}))
    assert lines[0].startswith(f"will not be accepted: {words}")


async def test_a_model_that_must_be_looked_at_first_says_so() -> None:
    model = {"source": "pvc://claim/models/unheard"}
    lines = await warnings(FakeCluster(), creation(**{**AMD, "model": model}))
    assert any(line.startswith("before pods start: ") for line in lines)


async def test_what_is_wrong_already_may_stay_while_something_else_changes() -> None:
    cluster = cluster_with(engine={"extraArgs": ["--model=old"]})
    verdict = await review(cluster, update(cluster, replicas=2, dry_run=False))
    assert verdict.refusal is None
    assert verdict.warnings[0].startswith("will not be accepted: spec.engine.extraArgs[0]")
    worse = update(cluster, engine={"extraArgs": ["--model=old", "--revision=x"]})
    refusal = (await review(cluster, worse)).refusal
    assert refusal is not None
    assert "extraArgs[1]" in refusal
    assert "extraArgs[0]" not in refusal


async def test_a_spec_of_a_newer_crd_passes() -> None:
    lines = await warnings(FakeCluster(), creation(dry_run=False, fromTheFuture=True))
    assert any("spec.fromTheFuture" in line for line in lines)


async def test_an_object_that_is_going_away_passes() -> None:
    body = creation(engine={"extraArgs": ["--model=evil"]})
    body["request"]["object"]["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z"
    assert await warnings(FakeCluster(), body) == []


class SlowCluster(FakeCluster):
    """Answers a list after a minute."""

    async def list_labelled(self, kind: Kind, *rest: Any) -> list[Manifest]:
        await asyncio.sleep(60)
        return []


def test_a_slow_cluster_does_not_make_the_user_wait() -> None:
    async def main() -> None:
        cluster = SlowCluster()
        reviewer = Reviewer(cluster, reconciler(cluster).decider)
        loop = asyncio.get_running_loop()
        for _ in range(10):
            before = loop.time()
            verdict = await reviewer.review(parse_review(creation(**AMD)))
            assert loop.time() - before < 1
            assert verdict.warnings[0].startswith("the cluster did not answer in time")
            assert any(line.startswith("fits: yes") for line in verdict.warnings)
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) <= 1 + 4
        await reviewer.close()
        assert len(asyncio.all_tasks()) == 1

    run_virtually(main())


@pytest.mark.parametrize("error", [TransientError("gone"), RefusedError("forbidden", 403)])
async def test_a_cluster_that_cannot_be_read_lets_the_object_pass(error: Exception) -> None:
    class BrokenCluster(FakeCluster):
        async def list_labelled(self, kind: Kind, *rest: Any) -> list[Manifest]:
            raise error

    verdict = await review(BrokenCluster(), creation(**AMD))
    assert verdict.refusal is None
    assert any(line.startswith("fits: yes") for line in verdict.warnings)


async def test_no_value_of_an_environment_variable_is_ever_repeated() -> None:
    secret = "hf_canary0123456789"
    engine = {"env": [{"name": "HF_TOKEN", "value": secret}], "extraArgs": [f"--revision={secret}"]}
    refused = await review(FakeCluster(), creation(engine=engine))
    allowed = await review(FakeCluster(), creation(engine={"env": engine["env"]}))
    assert refused.refusal is not None
    assert secret not in refused.refusal + "".join(allowed.warnings)


def test_warnings_fit_what_the_api_server_passes_on() -> None:
    words = "sequences at once and again " * 400
    lines = shortened(["short", words, "end"])
    assert lines[0] == "short"
    assert all(len(line) <= 120 for line in lines)
    assert sum(len(line.encode()) for line in lines) <= 4096
    assert lines[-1].endswith("more lines: kubectl atom plan -f FILE")
    assert shortened(["a\nb"]) == ["a b"]
    assert "".join(shortened(["x" * 400])).replace(" ", "") == "x" * 400


def test_the_answer_has_the_shape_of_the_api() -> None:
    refused = answer("u", Verdict(("w",), "no"))
    assert (refused["apiVersion"], refused["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    assert refused["response"] == {
        "uid": "u",
        "allowed": False,
        "warnings": ["w"],
        "status": {"code": 422, "reason": "Invalid", "message": "no"},
    }
    assert answer("u", Verdict())["response"] == {"uid": "u", "allowed": True}


@pytest.mark.parametrize("body", [None, [], {}, {"request": {}}, {"request": {"uid": "u"}}])
def test_what_is_no_review_is_an_error(body: object) -> None:
    with pytest.raises(ReviewError):
        parse_review(body)


async def test_names_made_by_the_server_do_not_matter() -> None:
    manifest = atom_deployment()
    del manifest["metadata"]["name"]
    manifest["metadata"]["generateName"] = "chat-"
    lines = await warnings(FakeCluster(), review_body(manifest, dry_run=True))
    assert any(line.startswith("fits: yes") for line in lines)


async def test_a_stopped_deployment_has_no_rollout() -> None:
    cluster = await served(replicas=0, **AMD)
    assert cluster.find(DEPLOYMENT, "chat")["spec"]["replicas"] == 0
    lines = await warnings(cluster, update(cluster, engine={"maxModelLen": 8192}))
    assert not any(line.startswith("rollout") for line in lines)


GROUP = {"tensor": 2, "nodes": 2}


@pytest.mark.parametrize(
    ("before", "after"), [({}, GROUP), (GROUP, {})], ids=["to a group", "to one pod"]
)
async def test_a_switch_of_nodes_is_told_with_what_serves_meanwhile(
    before: dict[str, int], after: dict[str, int]
) -> None:
    cluster = cluster_with(parallelism=before)
    await reconciler(cluster).reconcile(KEY)
    kind = LEADER_WORKER_SET if before else DEPLOYMENT
    counts = ("replicas", "readyReplicas", "updatedReplicas", "availableReplicas")
    cluster.find(kind, "chat")["status"] = dict.fromkeys(counts, 1)
    cluster.writes.clear()
    lines = await warnings(cluster, update(cluster, dry_run=False, parallelism=after))
    reason = "those before serve until they are ready"
    assert any(line.startswith("rollout: every pod is") and reason in line for line in lines)
    assert lines[-1] == (
        "rollout cost: every replica once more while it lasts; all replicas go on serving"
    )


async def test_a_change_of_a_group_is_told_with_its_absence() -> None:
    cluster = cluster_with(parallelism=GROUP)
    await reconciler(cluster).reconcile(KEY)
    cluster.writes.clear()
    lines = await warnings(cluster, update(cluster, dry_run=False, engine={"maxNumSeqs": 4}))
    assert lines[-1] == (
        "rollout cost: no spare pod; one replica (a group of 2 pods) less while it lasts, so a "
        "single replica is away meanwhile"
    )


async def test_both_roles_of_a_divided_model_are_announced() -> None:
    cluster = await served(replicas=1)
    told = await warnings(cluster, update(cluster, disaggregation={"prefill": {"replicas": 2}}))
    assert any(text.startswith("role: decode") for text in told)
    assert any(text.startswith("prefill: role: prefill") for text in told)
    assert "prefill, with the decode pods: 1 + 2 replicas" in told
    first = "rollout: the prefill pods start first; then every decode pod is replaced"
    assert first in told


async def test_a_role_that_can_never_run_is_refused_with_its_field() -> None:
    cluster = await served()
    body = update(cluster, disaggregation={"prefill": {}}, engine={"prefixCaching": False})
    verdict = await review(cluster, body)
    assert verdict.refusal is not None
    assert verdict.refusal.startswith("spec.disaggregation: received pages are found in the prefix")
