"""spec.cache.kv.hostMemory: the engine gets it, the pod requests it, the plan tells its tokens."""

from __future__ import annotations

from typing import Any

import pytest

from atom.sizing.host_tier import GIB
from atom_operator.api.v1alpha1.common import quantity_bytes
from atom_operator.children.engine_container import engine_container
from atom_operator.children.volumes import volumes
from atom_operator.children.workload import pod_template
from atom_operator.domain import Owner, Plan
from atom_operator.plan.learning import learning_key
from atom_operator.plan.volume_claims.pvc_access import ClaimUse, claim_problem, claims_of
from atom_operator.plan_report import facts
from atom_operator.reconcile.planning import Surroundings, plan_spec
from atom_operator.validation.defaulting import resolve_options
from atom_operator.validation.engine_limits import validate_tier
from atom_operator.validation.parsing import parse_spec
from atom_operator.validation.rules import validate
from tests.support.operator.builders_operator import (
    IMAGES,
    KEY,
    TINY_CONFIG,
    parsed,
    plan,
    spec,
)

GPU = {"type": "amd", "product": "MI300X"}
CPU = {"type": "cpu", "memory": "32Gi"}
TIER = {"kv": {"hostMemory": "64Gi"}}


def memory_of(**changes: Any) -> int:
    requests = engine_container(plan(**changes))["resources"]["requests"]
    return int(str(requests["memory"]).removesuffix("Gi"))


def arguments(**changes: Any) -> list[str]:
    return list(engine_container(plan(**changes))["args"])


def key_of(planned: Plan) -> str:
    return learning_key(planned.model.location, planned.engine, planned.accelerator)


@pytest.mark.parametrize(
    ("size", "told"), [("64Gi", "64"), ("1536Mi", "1.5"), ("3000000000", "2.793967724")]
)
def test_the_engine_gets_the_size_in_gib(size: str, told: str) -> None:
    args = arguments(accelerator=GPU, cache={"kv": {"hostMemory": size}})
    assert args[args.index("--kv-offloading-size") + 1] == told
    assert "--kv-offloading-size" not in arguments(accelerator=GPU)


@pytest.mark.parametrize("data", [1, 2])
def test_a_pod_requests_the_tier_once_however_many_copies_share_it(data: int) -> None:
    asked: dict[str, Any] = {"accelerator": GPU, "parallelism": {"data": data}}
    assert memory_of(**asked, cache=TIER) == memory_of(**asked) + 64


def test_the_plan_tells_the_tokens_that_a_tier_holds() -> None:
    planned = plan(accelerator=GPU, cache=TIER)
    capacity = planned.capacity.capacity
    assert capacity is not None
    tokens = 64 * GIB // (capacity.kv_bytes_per_token * 16) * 16
    sequences = tokens // capacity.max_model_len
    told = dict(facts(planned))["KV tier"]
    assert f"= {tokens:,} tokens, {sequences:,} sequences of full length" in told
    assert "KV tier" not in dict(facts(plan(accelerator=GPU)))


def test_on_a_cpu_the_tier_is_a_part_of_the_devices_memory() -> None:
    without, planned = (
        plan(accelerator=CPU),
        plan(accelerator=CPU, cache={"kv": {"hostMemory": "4Gi"}}),
    )
    before, after = without.capacity.capacity, planned.capacity.capacity
    assert before is not None
    assert after is not None
    assert after.device.reserve_bytes == before.device.reserve_bytes + 4 * GIB
    assert memory_of(accelerator=CPU, cache={"kv": {"hostMemory": "4Gi"}}) == memory_of(
        accelerator=CPU
    )
    assert key_of(without) != key_of(planned), "one's measurement corrects no plan of the other"


def test_evidence_of_a_gpu_with_a_tier_corrects_no_plan_without_one() -> None:
    without, planned, larger = (
        plan(accelerator=GPU, cache={"kv": {"hostMemory": size}} if size else {})
        for size in (None, "64Gi", "128Gi")
    )
    assert key_of(without) != key_of(planned), "the reserve has places of pages on their way"
    assert key_of(planned) == key_of(larger), "of which a larger tier has no more"


@pytest.mark.parametrize(("size", "batched"), [("64Gi", 8192), ("64Gi", 512), ("8Mi", 8192)])
def test_on_a_gpu_pages_on_their_way_have_places_in_the_devices_memory(
    size: str, batched: int
) -> None:
    """As many as a step computes, of at most half of the tier, and those that are read."""
    asked = {"accelerator": GPU, "engine": {"maxNumBatchedTokens": batched}}
    planned = plan(**asked, cache={"kv": {"hostMemory": size}})
    before, after = plan(**asked).capacity.capacity, planned.capacity.capacity
    assert before is not None
    assert after is not None
    page_bytes = after.kv_bytes_per_token * 16
    half = max(1, int(quantity_bytes(size)) // page_bytes // 2)
    pages = max(64, (256 << 20) // page_bytes)
    written = max(pages, min(batched // 16, (1536 << 20) // page_bytes))
    places = min(written, half) + min(pages, half)
    assert after.device.reserve_bytes - before.device.reserve_bytes == places * page_bytes


def test_a_tier_that_is_larger_than_the_cpus_memory_is_refused() -> None:
    verdict = plan(accelerator=CPU, cache=TIER).capacity
    assert verdict.fits == "False"


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (["--kv-offloading-size", "4"], "spec.cache.kv.hostMemory"),
        (["--kv-offloading-size=4"], "spec.cache.kv.hostMemory"),
        (["--kv-disk-size", "4"], "spec.cache.kv.disk.size"),
        (["--kv-disk-dir", "/cache"], "--kv-disk-dir"),
    ],
)
def test_the_flag_is_the_fields_alone(words: list[str], field: str) -> None:
    problems = validate(parsed(engine={"extraArgs": words}))
    assert any(field in str(each) for each in problems)


def with_disk(**disk: Any) -> dict[str, Any]:
    return {"kv": {"hostMemory": "64Gi", "disk": disk}}


def disk_request(**changes: Any) -> str:
    pod = pod_template(plan(accelerator=GPU, **changes))["spec"]
    return str(pod["containers"][0]["resources"]["requests"]["ephemeral-storage"])


def test_files_are_on_the_node_and_requested_from_it() -> None:
    """The kubelet evicts a pod above the limit, so there is room for files that are about to be
    removed."""
    planned = plan(accelerator=GPU, cache=with_disk(size="800Gi"))
    args = engine_container(planned)["args"]
    assert args[args.index("--kv-disk-size") + 1] == "800"
    folder = args[args.index("--kv-disk-dir") + 1]
    mounts = {each["name"]: each["mountPath"] for each in engine_container(planned)["volumeMounts"]}
    assert mounts["kv-cache"] == folder
    (volume,) = [each for each in volumes(planned) if each["name"] == "kv-cache"]
    assert volume["emptyDir"] == {"sizeLimit": "900Gi"}
    without = int(disk_request(cache=TIER).removesuffix("Gi"))
    assert disk_request(cache=with_disk(size="800Gi")) == f"{without + 900}Gi"
    stated = {**with_disk(size="800Gi"), "ephemeralStorage": "10Gi"}
    assert disk_request(cache=stated) == "910Gi"


def test_files_on_a_claim_take_nothing_of_the_node() -> None:
    cache = with_disk(size="800Gi", claim="pages")
    planned = plan(accelerator=GPU, cache=cache)
    (volume,) = [each for each in volumes(planned) if each["name"] == "kv-cache"]
    assert volume["persistentVolumeClaim"] == {"claimName": "pages"}
    assert disk_request(cache=cache) == disk_request(cache=TIER)
    uses = claims_of(planned.engine, planned.model.location, planned.integrations)
    assert ClaimUse("pages", "spec.cache.kv.disk.claim", writes=True) in uses


def test_a_claim_of_one_node_is_refused_for_two_replicas() -> None:
    planned = plan(accelerator=GPU, cache=with_disk(size="1Gi", claim="pages"), replicas=2)
    use = ClaimUse("pages", "spec.cache.kv.disk.claim", writes=True)
    problem = claim_problem(planned, use, frozenset({"ReadWriteOnce"}), 2)
    assert problem is not None
    assert problem.field == "spec.cache.kv.disk.claim"
    assert claim_problem(planned, use, frozenset({"ReadWriteMany"}), 2) is None


@pytest.mark.parametrize(
    ("asked", "claim", "counted"),
    [
        ({"disaggregation": {"prefill": {}}}, "pages", "2 pods, 1 of spec.disaggregation.prefill"),
        (
            {"disaggregation": {"prefill": {"replicas": 3}}},
            "weights",
            "6 pods, 3 of spec.disaggregation.prefill, 2 of spec.frontend",
        ),
        ({"frontend": {"replicas": 4}}, "weights", "5 pods, 4 of spec.frontend"),
        ({"frontend": {}}, "pages", None),  # no server without an engine mounts it
        ({"disaggregation": {"prefill": {"replicas": 0}}}, "pages", None),
    ],
)
def test_pods_of_other_roles_share_a_claim(
    asked: dict[str, Any], claim: str, counted: str | None
) -> None:
    model = {"source": "pvc://weights/tiny", "config": TINY_CONFIG}
    cache = with_disk(size="1Gi", claim="pages")
    planned = plan(model=model, accelerator=GPU, cache=cache, **asked)
    uses = claims_of(planned.engine, planned.model.location, planned.integrations)
    (use,) = [each for each in uses if each.name == claim]
    problem = claim_problem(planned, use, frozenset({"ReadWriteOnce"}), 2)
    assert (problem is None) is (counted is None)
    if problem is not None:
        assert counted is not None
        assert counted in problem.message
        assert "spec.replicas" not in problem.message
    assert claim_problem(planned, use, frozenset({"ReadWriteMany"}), 2) is None


@pytest.mark.parametrize(
    ("disk", "where"),
    [
        ({"size": "800Gi"}, "on each pod's node"),
        ({"size": "800Gi", "claim": "pages"}, "on claim pages"),
    ],
)
def test_the_plan_tells_the_tokens_that_files_hold(disk: dict[str, Any], where: str) -> None:
    told = dict(facts(plan(accelerator=GPU, cache=with_disk(**disk))))
    tokens = [int(text.split("=")[1].split()[0].replace(",", "")) for text in (
        told["KV tier"], told["KV files"]
    )]  # fmt: skip
    assert where in told["KV files"]
    assert 12.4 < tokens[1] / tokens[0] < 12.6
    assert "KV files" not in dict(facts(plan(accelerator=GPU, cache=TIER)))


@pytest.mark.parametrize("kv", [{"disk": {"size": "1Gi"}}, {"hostMemory": "1Gi", "disk": {}}])
def test_files_need_a_size_and_the_hosts_tier(kv: dict[str, Any]) -> None:
    found = parse_spec(spec(cache={"kv": kv}))
    assert isinstance(found, tuple)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, None),
        ({"engine": {"prefixCaching": False}}, "spec.engine.prefixCaching is false"),
        ({"parallelism": {"tensor": 16, "nodes": 2}}, "share no memory of a host"),
    ],
)
def test_options_without_a_tier_are_told_by_the_field(
    changes: dict[str, Any], told: str | None
) -> None:
    options = resolve_options(parsed(cache=TIER, accelerator=GPU, **changes), image="i")
    problems = list(validate_tier(options))
    if told is None:
        assert problems == []
        return
    (problem,) = problems
    assert problem.field == "spec.cache.kv.hostMemory"
    assert told in problem.message


def node(memory: str, devices: int = 8) -> dict[str, Any]:
    found = {"amd.com/gpu": str(devices), "memory": memory}
    return {"metadata": {"name": f"node-{memory}"}, "status": {"allocatable": found}}


def auto_plan(nodes: list[dict[str, Any]], **changes: Any) -> Plan:
    asked = {"accelerator": GPU, "cache": {"kv": {"hostMemory": "Auto"}}, **changes}
    found = plan_spec(Owner(KEY, "uid"), parsed(**asked), Surroundings(IMAGES, nodes=nodes))
    assert isinstance(found, Plan), found
    return found


@pytest.mark.parametrize("devices", [1, 2, 4])
def test_auto_is_a_part_of_the_share_of_the_smallest_node(devices: int) -> None:
    nodes = [
        node("8Gi", devices - 1),
        node("2048Gi"),
        node("1056964608Ki"),
        node("4096Gi", devices=4),
        node("64Gi", 0),
    ]
    planned = auto_plan(nodes, parallelism={"tensor": devices})
    size = planned.engine.serving.host_tier_bytes
    share = 1056964608 * 1024 * devices // 8
    assert 0 < size <= share * 0.7 - 8 * GIB < size + 16 * GIB
    told = dict(facts(planned))["KV tier"]
    assert "70 %" in told
    assert "smallest node" in told
    args = engine_container(planned)["args"]
    assert args[args.index("--kv-offloading-size") + 1] == str(size // GIB)
    assert auto_plan(nodes[::-1], parallelism={"tensor": devices}).engine == planned.engine


@pytest.mark.parametrize(
    ("nodes", "told"),
    [([], "no node with the device is known"), ([node("64Gi")], "too little for a tier")],
)
def test_auto_without_room_is_no_tier_and_says_so(nodes: list[dict[str, Any]], told: str) -> None:
    disk = {"kv": {"hostMemory": "Auto", "disk": {"size": "1Ti"}}}
    planned = auto_plan(nodes, cache=disk)
    assert not [
        word
        for word in engine_container(planned)["args"]
        if word.startswith(("--kv-off", "--kv-disk"))
    ]
    assert told in dict(facts(planned))["KV tier"]
    assert "kv-cache" not in {each["name"] for each in volumes(planned)}


def test_auto_on_a_cpu_is_a_quarter_of_its_memory() -> None:
    planned = auto_plan([], accelerator=CPU)
    assert planned.engine.serving.host_tier_bytes == 8 * GIB
    assert "a quarter of accelerator.memory" in dict(facts(planned))["KV tier"]
