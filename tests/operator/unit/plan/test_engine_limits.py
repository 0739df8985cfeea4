"""What the engine does not run is refused by name, told apart from what it would need."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from atom.sizing import ARCHITECTURES, unsupported
from atom_operator.__main__ import main
from atom_operator.children.engine_container import engine_args
from atom_operator.domain import FieldProblem, Owner, Plan
from atom_operator.integration_values import EngineFeature, Site
from atom_operator.plan.model_facts import catalogue_sources, facts_from_catalogue
from atom_operator.reconcile.planning import Surroundings, consider, plan_spec
from tests.support.catalogue.latent import DEEPSEEK_V3
from tests.support.models.published_deepseek_v4 import FLASH
from tests.support.operator.builders_operator import (
    IMAGES,
    KEY,
    TINY_CONFIG,
    atom_deployment,
    parsed,
    plan,
)

MI300X = {"type": "amd", "product": "MI300X"}
MTP = {"method": "mtp", "tokens": 2}
R1: dict[str, Any] = {
    "model": {"source": "hf://deepseek-ai/DeepSeek-R1"},
    "accelerator": MI300X,
    "parallelism": {"tensor": 8, "expert": True},
    "engine": {"maxModelLen": 65_536, "kvCacheDtype": "fp8", "speculative": MTP},
}
ABLE = Site(
    engine_tensor_parallel=8,
    engine_architectures=("DeepseekV3ForCausalLM",),
    engine_features=frozenset(EngineFeature),
)


def problems(site: Site | None = None, **changes: Any) -> tuple[FieldProblem, ...]:
    around = Surroundings(IMAGES, site=site or Site())
    result = plan_spec(Owner(KEY, "uid"), parsed(**changes), around)
    assert isinstance(result, tuple)
    return result


@pytest.mark.parametrize("source", catalogue_sources())
def test_every_model_of_the_catalogue_is_run_or_refused_by_name(source: str) -> None:
    facts = facts_from_catalogue(source).facts
    assert facts is not None
    changes = {"model": {"source": source}, "accelerator": {**MI300X, "memory": "4000Gi"}}
    reasons = unsupported(facts)
    if not reasons:
        assert plan(**changes).capacity.fits == "True"
        return
    found = problems(**changes)
    assert [(problem.field, problem.reason.value) for problem in found] == [
        ("spec.model.source", "ModelNotSupported")
    ] * len(reasons)
    for problem, reason in zip(found, reasons, strict=True):
        assert reason.message in problem.message
        assert "engine.architectures" in problem.message
    if facts.architecture not in ARCHITECTURES:
        assert facts.architecture in found[0].message
    able = Site(engine_architectures=(facts.architecture,))
    assert plan(able, **changes).capacity.fits == "True"


def test_each_limit_is_a_problem_of_its_field_until_the_site_can_do_it() -> None:
    found = {problem.field: problem for problem in problems(**R1)}
    assert {field: problem.reason.value for field, problem in found.items()} == {
        "spec.engine.speculative": "UnsupportedByEngine",
    }
    assert plan(ABLE, **R1).capacity.fits == "True"


def test_experts_are_divided_as_the_engine_does_it() -> None:
    mixture = {"model": {"source": "hf://Qwen/Qwen3-30B-A3B"}, "accelerator": MI300X}
    shared = {**mixture, "parallelism": {"data": 2, "expert": True}}
    assert {"--enable-expert-parallel", "--enable-dp-attention"} <= {*engine_args(plan(**shared))}
    whole, divided = (
        plan(**{**mixture, "parallelism": {"data": 2, "expert": expert}}).capacity.capacity
        for expert in (False, True)
    )
    assert whole is not None
    assert divided is not None
    experts = 48 * 128 * 3 * 768 * 2048 * 2
    assert whole.weights_bytes - divided.weights_bytes == experts // 2
    keys = {
        plan(**{**mixture, "parallelism": {"data": ranks, "expert": True}}).model.evidence.key
        for ranks in (2, 4)
    }
    assert len(keys) == 2, "what two ranks measured says nothing of four"
    for parallelism, message in (
        ({"data": 3, "expert": True}, "128 experts are not equally many on each of 3 ranks"),
        ({"data": 2, "tensor": 2, "expert": True}, "and not over 2 × 2"),
        ({"expert": True}, "2 ranks or more"),
    ):
        (problem,) = problems(**{**mixture, "parallelism": parallelism})
        assert problem.field == "spec.parallelism.expert"
        assert message in problem.message
        assert "engine.features: expertParallel" in problem.message


def test_whole_experts_over_nodes_are_planned_and_asked_for_as_the_engine_takes_them() -> None:
    parallelism = {"tensor": 16, "nodes": 2, "expert": True}
    asked = {**R1, "engine": {"maxModelLen": 65_536}, "parallelism": parallelism}
    made = plan(**asked)
    args = engine_args(made)
    assert args[args.index("--tensor-parallel-size") + 1] == "16"
    assert {"--enable-expert-parallel", "--nnodes"} <= {*args}
    assert "--enable-dp-attention" not in args
    capacity = made.capacity.capacity
    assert capacity is not None
    assert capacity.weights_bytes == DEEPSEEK_V3.expert_weights[16] + 65_536 * 64 * 4
    odd = {**asked, "parallelism": {**parallelism, "tensor": 24, "nodes": 3}}
    said = {problem.field: problem.message for problem in problems(**odd)}
    assert said.keys() == {"spec.parallelism.tensor", "spec.parallelism.expert"}
    assert "number of experts 256 is not divisible by 24" in said["spec.parallelism.tensor"]


def test_shared_experts_over_nodes_are_planned_and_asked_for_as_the_engine_takes_them() -> None:
    mixture = {"model": {"source": "hf://Qwen/Qwen3-30B-A3B"}, "accelerator": MI300X}
    parallelism = {"data": 16, "nodes": 2, "expert": True}
    made = plan(**{**mixture, "parallelism": parallelism})
    args = engine_args(made)
    assert args[args.index("--data-parallel-size") + 1] == "16"
    assert args[args.index("--tensor-parallel-size") + 1] == "1"
    assert {"--enable-expert-parallel", "--enable-dp-attention", "--nnodes"} <= {*args}
    one_node = plan(**{**mixture, "parallelism": {"data": 8, "expert": True}})
    halves, whole = made.capacity.capacity, one_node.capacity.capacity
    assert halves is not None
    assert whole is not None
    experts = 48 * 128 * 3 * 768 * 2048 * 2
    assert whole.weights_bytes - halves.weights_bytes == experts // 16, "an Nth on each rank"
    assert halves.num_blocks > whole.num_blocks, "and a cache of its own"
    for changes, message in (
        ({"data": 12}, "numbers of ranks that divide them over 2 nodes: 2, 4, 8, 16"),
        ({"data": 15}, "15 ranks are not equally many on each of 2 nodes"),
    ):
        (problem,) = problems(**{**mixture, "parallelism": {**parallelism, **changes}})
        assert problem.field == "spec.parallelism.expert"
        assert message in problem.message


def test_what_only_the_engine_refuses_is_planned_all_the_same() -> None:
    around = Surroundings(IMAGES)
    considered = consider(Owner(KEY, "uid"), parsed(**R1), around)
    assert considered.plan is not None
    assert considered.plan.capacity == plan(ABLE, **R1).capacity
    broken = {**R1, "engine": {"maxModelLen": 1 << 20}}
    assert consider(Owner(KEY, "uid"), parsed(**broken), around).plan is None


def test_an_engine_that_can_do_it_is_told_so() -> None:
    args = engine_args(plan(ABLE, **R1))
    assert "--enable-expert-parallel" in args
    assert args[args.index("--kv-cache-dtype") + 1] == "fp8"
    assert args[args.index("--method") : args.index("--method") + 4] == [
        *("--method", "mtp", "--num-speculative-tokens", "2")
    ]
    plain = engine_args(plan())
    assert not {"--enable-expert-parallel", "--method"} & {*plain}


def test_deepseek_r1_on_eight_mi300x_by_hand() -> None:
    changes = {**R1, "parallelism": {"tensor": 8}}
    capacity = plan(ABLE, **changes).capacity.capacity
    assert capacity is not None
    weights = DEEPSEEK_V3.weights[8] + DEEPSEEK_V3.draft_weights[8]
    # cosines and sines of the rotated part, of each position: once for model and drafts
    assert capacity.weights_bytes == weights + 65_536 * 64 * 4
    # 61 layers and one of drafts, 644 bytes of fp8 in each, on every device
    assert (capacity.kv_bytes_per_token, capacity.beside_kv.window_bytes) == (62 * 644, 0)
    # widest: 16 heads, keys and values of a prompt unfolded, the latent and the queries' rank,
    # against 8 experts of 2048 / 8 with outputs of 7168, and the shared one
    attention = 16 * 2 * (192 + 128) + 576 + 1536
    experts = 8 * (3 * 256 + 7168) + 3 * 256
    assert experts > attention
    activations = 16_384 * (3 * 7168 + experts) * 2 + 512 * 3 * 129_280 * 4 * 3
    activations += 65_536 * 64 * 2  # AITER's own tables
    runtime = 3 * 1024**3 // 2 + int(192 * 1024**3 * 0.02)
    # 4 MiB for 32 channels and two directions, and two rooms of 64 MiB for sums of few rows
    ranks = (2 * 32 * 4 + 2 * 64) * 1024**2
    left = int(192 * 1024**3 * 0.9) - capacity.weights_bytes - activations - runtime - ranks
    assert capacity.num_blocks == left // (16 * 62 * 644)
    # a sequence has room for its two drafts, but at the end
    blocks = {1024: 65, 2048: 129, 65_536: 4096}
    for row in capacity.concurrency:
        if row.context_tokens in blocks:
            expected = min(512, capacity.num_blocks // blocks[row.context_tokens])
            assert row.sequences == expected


def test_gpt_oss_holds_what_its_windows_leave_by_hand() -> None:
    site = Site(engine_architectures=("GptOssForCausalLM",))
    model = {"source": "hf://openai/gpt-oss-20b"}
    capacity = plan(site, model=model, accelerator=MI300X).capacity.capacity
    assert capacity is not None
    # 12 layers x 2 x 8 x 64 x 2 bytes, of every token and of 9 blocks that touch 128 tokens
    token = 24_576
    assert (capacity.kv_bytes_per_token, capacity.beside_kv.window_bytes) == (token, 9 * 16 * token)
    activations = 16_384 * (3 * 2880 + 4 * (3 * 2880 + 2880)) * 2 + 512 * 201_088 * 4 * 3
    runtime = 3 * 1024**3 // 2 + int(192 * 1024**3 * 0.02)
    left = int(192 * 1024**3 * 0.9) - capacity.weights_bytes - activations - runtime
    for row in capacity.concurrency:
        assert row.sequences == min(512, left // (token * (row.context_tokens + 144)))


def test_deepseek_v4_is_planned_by_what_its_entries_and_windows_take() -> None:
    asked: dict[str, Any] = {
        "model": {"source": "hf://example/plain", "config": FLASH},
        "accelerator": {**MI300X, "memory": "4000Gi"},
        "engine": {"maxModelLen": 65_536},
    }
    capacity = plan(**asked).capacity.capacity
    assert capacity is not None
    # In blocks of 16 tokens 21 layers have 4 entries of 640 elements, 20 one of 512.
    token = (21 * 4 * 640 + 20 * 512) * 2 // 16
    window = capacity.beside_kv.window_bytes
    assert (capacity.kv_bytes_per_token, window) == (token, 31 * 9 * 16 * token)
    (problem,) = problems(**{**asked, "engine": {"kvCacheDtype": "fp8"}})
    assert (problem.field, problem.reason.value) == (
        *("spec.engine.kvCacheDtype", "UnsupportedByEngine"),
    )
    assert "use auto, bf16 or fp32" in problem.message
    # An fp8 cache of half the size would fit, and is nothing to advise.
    small = {**asked, "accelerator": {**MI300X, "memory": "612Gi"}}
    limits = {"maxModelLen": 1_048_576, "maxNumBatchedTokens": 2048, "maxNumSeqs": 4}
    verdict = plan(**{**small, "engine": limits}).capacity
    assert verdict.reason.value == "ContextDoesNotFit"
    assert "maxModelLen" in verdict.message
    assert "kvCacheDtype" not in verdict.message


@pytest.mark.parametrize("method", ["ngram", "suffix"])
def test_drafts_from_texts_run_on_any_engine_and_take_no_layers(method: str) -> None:
    asked = {"model": R1["model"], "accelerator": {**MI300X, "memory": "4000Gi"}}
    without = plan(ABLE, **asked)
    drafting = plan(ABLE, **asked, engine={"speculative": {"method": method}})
    assert "--method" in engine_args(
        plan(engine={"speculative": {}})
    )  # of a site that says nothing
    args = engine_args(drafting)
    assert args[args.index("--method") : args.index("--method") + 4] == [
        *("--method", method, "--num-speculative-tokens", "5")
    ]
    one, other = without.capacity.capacity, drafting.capacity.capacity
    assert one is not None
    assert other is not None
    assert (one.weights_bytes, one.kv_bytes_per_token) == (
        *(other.weights_bytes, other.kv_bytes_per_token),
    )


def test_states_take_the_inputs_of_drafts_beside_them() -> None:
    asked = {"model": {"source": "hf://Qwen/Qwen3-Next-80B-A3B-Instruct"}, "accelerator": MI300X}
    without, made = plan(**asked), plan(**asked, engine={"speculative": {"method": "ngram"}})
    one, other = without.capacity.capacity, made.capacity.capacity
    assert one is not None
    assert other is not None
    assert 0 < other.beside_kv.bounded_sequences < one.beside_kv.bounded_sequences


def test_a_models_own_layer_drafts_on_any_engine() -> None:
    asked = {"model": R1["model"], "accelerator": {**MI300X, "memory": "4000Gi"}}
    without, made = plan(**asked), plan(**asked, engine={"speculative": MTP})
    assert "mtp" in engine_args(made)
    one, other = without.capacity.capacity, made.capacity.capacity
    assert one is not None
    assert other is not None
    assert other.weights_bytes - one.weights_bytes == DEEPSEEK_V3.draft_weights[1]
    assert other.kv_bytes_per_token * 61 == one.kv_bytes_per_token * 62


def test_the_refusal_of_an_unknown_architecture_names_the_nearest_that_runs() -> None:
    config = {**TINY_CONFIG, "architectures": ["Glm5MoeForCausalLM"]}
    (problem,) = problems(model={"source": "path:///m", "config": config})
    assert "the nearest that runs is Glm4MoeForCausalLM (by name)" in problem.message


@pytest.mark.parametrize("names", [("NewForCausalLM",), ("*",)])
def test_a_family_without_arithmetic_is_unknown_where_the_site_runs_it(
    names: tuple[str, ...],
) -> None:
    model = {"source": "path:///m", "config": {**TINY_CONFIG, "architectures": ["NewForCausalLM"]}}
    (problem,) = problems(model=model)
    assert (problem.field, problem.reason.value) == ("spec.model.config", "ModelNotSupported")
    verdict = plan(Site(engine_architectures=names), model=model).capacity
    assert (verdict.fits, verdict.reason.value) == ("Unknown", "ModelNotSized")
    assert "NewForCausalLM" in verdict.message


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"parallelism": {"expert": True}}, "spec.parallelism.expert"),
        ({"engine": {"speculative": MTP}}, "spec.engine.speculative"),
    ],
)
def test_what_the_model_does_not_have_is_refused_on_any_engine(
    changes: dict[str, Any], field: str
) -> None:
    (problem,) = problems(ABLE, **changes)
    assert problem.field == field
    assert "leave it out" in problem.message


def test_the_plan_command_prints_the_arithmetic_beside_the_refusal(
    tmp_path: Any, capsys: Any
) -> None:
    path = tmp_path / "r1.yaml"
    path.write_text(yaml.safe_dump(atom_deployment(**R1)), encoding="utf-8")
    assert main(["plan", "-f", str(path)]) == 1
    text = capsys.readouterr().out
    assert "spec.engine.speculative: layers that draft (methods mtp, eagle3, draft_model)" in text
    assert "81 GiB per device in fp8 (8 bits) and 16-bit floats: routed experts" in text
    assert "compressing projections 881 MiB (whole on each)" in text
    assert "61 layers of MLA latent x 644 B = 38.4 KiB, the same on every device" in text
    assert "1 draft layer of MLA latent x 644 B" in text
    assert "at 65,536 tokens" in text
    assert main(["plan", "-f", str(path), "-o", "json"]) == 1
    (printed,) = yaml.safe_load(capsys.readouterr().out)
    assert len(printed["problems"]) == len(problems(**R1))
    capacity = printed["plan"]["capacity"]["capacity"]
    assert capacity["kv_bytes_per_token"] == 62 * 644
    sizes = printed["sizes"]
    assert sum(part["size_bytes"] for part in sizes["weights"]) == capacity["weights_bytes"]
    assert [(term["layers"], term["token_bytes"]) for term in sizes["kv"]] == [(61, 644), (1, 644)]


def test_a_plan_that_does_not_fit_shows_what_it_is_the_sum_of(tmp_path: Any, capsys: Any) -> None:
    path = tmp_path / "gemma.yaml"
    manifest = atom_deployment(
        model={"source": "hf://google/gemma-2-27b"}, accelerator={"type": "amd", "memory": "40Gi"}
    )
    path.write_text(yaml.safe_dump(manifest), encoding="utf-8")
    assert main(["plan", "-f", str(path)]) == 1
    text = capsys.readouterr().out
    assert "no, WeightsDoNotFit" in text
    assert "50.7 GiB per device" in text
    assert "23 layers of sliding window x 8,192 B = 184 KiB, of the newest 4,096 tokens" in text


def test_a_plan_without_a_model_has_no_arithmetic() -> None:
    unknown = plan(model={"source": "hf://acme/private"}, accelerator=MI300X)
    assert isinstance(unknown, Plan)
    assert unknown.model.facts is None


@pytest.mark.parametrize(
    ("changes", "drop"),
    [
        ({"engine": {"kvCacheDtype": "fp8"}}, "drop --kv-cache-dtype fp8"),
        ({"engine": {"lora": {}}}, "drop --enable-lora"),
        ({"engine": {"extraArgs": ["--quantization=fp8"]}}, "drop --quantization"),
        ({"engine": {"extraArgs": ["--backend", "triton"]}}, "drop --backend"),
    ],
)
def test_what_reproducible_answers_do_not_go_with_is_refused(
    changes: dict[str, Any], drop: str
) -> None:
    model = {"model": {"source": "hf://Qwen/Qwen3-8B"}, "accelerator": MI300X}
    asked = {**model, "engine": {"reproducible": True, **changes["engine"]}}
    (found,) = problems(**asked)
    assert found.field == "spec.engine.reproducible"
    assert drop in found.message


def test_reproducible_answers_are_asked_of_the_engine() -> None:
    model = {"model": {"source": "hf://Qwen/Qwen3-8B"}, "accelerator": MI300X}
    asked = {**model, "engine": {"reproducible": True}, "parallelism": {"tensor": 2}}
    assert "--reproducible" in engine_args(plan(**asked))
    assert "--reproducible" not in engine_args(plan(**model))
