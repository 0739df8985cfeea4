"""Plans of a model with a draft model: its weights, its cache, and pairs that are refused."""

from __future__ import annotations

from typing import Any

import pytest

from atom_operator.children.engine_container import engine_args, engine_container
from atom_operator.domain import Plan
from atom_operator.integration_values import Site
from tests.operator.unit.plan.test_engine_limits import ABLE, MI300X, R1, problems
from tests.support.operator.builders_operator import plan

# A Llama layer over two states, a head of 32,000, three joined states of the target.
EAGLE3: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "hidden_size": 4096,
    "num_hidden_layers": 1,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14_336,
    "vocab_size": 128_256,
    "draft_vocab_size": 32_000,
    "max_position_embeddings": 2048,
    "torch_dtype": "bfloat16",
}
SMALLER = {
    "architectures": ["LlamaForCausalLMEagle3"], "hidden_size": 2048, "num_hidden_layers": 1,
    "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14_336,
    "vocab_size": 128_256, "draft_vocab_size": 32_000, "max_position_embeddings": 2048,
    "target_hidden_size": 4096,
}  # fmt: skip


def drafted(site: Site = ABLE, **speculative: Any) -> Plan:
    engine = {"maxModelLen": 8192, "speculative": {"method": "eagle3", "tokens": 3, **speculative}}
    model = {"source": "hf://meta-llama/Llama-3.1-8B-Instruct"}
    return plan(site, model=model, accelerator=MI300X, engine=engine)


def test_a_draft_model_brings_its_weights_and_its_cache_by_hand() -> None:
    made = drafted(draftModel="hf://acme/eagle", draftConfig=EAGLE3)
    capacity = made.capacity.capacity
    assert capacity is not None
    target = 8_030_261_248
    draft = (
        32_000 * 4096  # its head; the embedding is the target's
        + 8192 * 4096  # q, of embedding and hidden state
        + 2 * 8192 * 1024  # k, v
        + 4096 * 4096  # o
        + 3 * 4096 * 14_336
        + 4 * 4096  # norms of both states, after attention, and the last
        + 3 * 4096 * 4096  # three hidden states of the target become one
    )
    tables = 2 * 8192 * 128 * 4  # of the target and of the draft
    assert capacity.weights_bytes == 2 * (target + draft) + tables
    assert capacity.kv_bytes_per_token == 33 * 2 * 8 * 128 * 2
    args = engine_args(made)
    assert args[args.index("--method") + 1] == "eagle3"
    assert args[args.index("--draft-model") + 1] == "acme/eagle"


def test_a_whole_model_that_drafts_brings_its_weights_and_its_cache_by_hand() -> None:
    made = drafted(method="draft_model", draftModel="hf://meta-llama/Llama-3.2-1B", tokens=None)
    capacity = made.capacity.capacity
    assert capacity is not None
    tables = 8192 * (128 + 64) * 4
    assert capacity.weights_bytes == 2 * (8_030_261_248 + 1_235_814_400) + tables
    assert capacity.kv_bytes_per_token == 2 * 2 * 8 * (32 * 128 + 16 * 64)
    args = engine_args(made)
    assert args[args.index("--method") + 1] == "draft_model"
    assert args[args.index("--num-speculative-tokens") + 1] == "5"
    assert args[args.index("--draft-model") + 1] == "meta-llama/Llama-3.2-1B"


def test_a_draft_model_has_its_time_and_its_token_where_a_job_fetches_the_model() -> None:
    asked: dict[str, Any] = {
        "model": {
            "source": "hf://meta-llama/Llama-3.1-8B-Instruct",
            "tokenSecretRef": {"name": "hub", "key": "token"},
        },
        "accelerator": MI300X,
        "cache": {"weights": {"claim": "models"}},
    }

    def drafting(source: str) -> Plan:
        eagle = {"method": "eagle3", "draftModel": source, "draftConfig": EAGLE3}
        return plan(ABLE, **asked, engine={"speculative": eagle})

    def has_token(made: Plan) -> bool:
        return "HF_TOKEN" in {item["name"] for item in engine_container(made)["env"]}

    without, fetched, there = plan(ABLE, **asked), drafting("hf://a/b"), drafting("path:///b")
    assert fetched.rollout.startup_budget_seconds == without.rollout.startup_budget_seconds + 2 * 16
    assert [has_token(made) for made in (without, fetched, there)] == [False, True, False]


def test_a_draft_model_that_nobody_knows_makes_the_plan_unknown() -> None:
    verdict = drafted(draftModel="path:///drafts/eagle").capacity
    assert (verdict.fits, verdict.reason.value) == ("Unknown", "ModelNotSized")
    assert "spec.engine.speculative.draftConfig" in verdict.message


@pytest.mark.parametrize(
    ("speculative", "field"),
    [
        ({"method": "eagle3"}, "draftModel"),
        ({"method": "draft_model"}, "draftModel"),
        ({"draftModel": "hf://a/b"}, "draftModel"),
        ({"method": "mtp", "draftModel": "hf://a/b"}, "draftModel"),
        ({"method": "eagle3", "draftModel": "hf://a/b", "draftConfig": {}}, "draftConfig"),
    ],
)
def test_a_draft_model_is_named_whole_or_not_at_all(
    speculative: dict[str, Any], field: str
) -> None:
    found = problems(
        ABLE, model=R1["model"], accelerator=MI300X, engine={"speculative": speculative}
    )
    assert f"spec.engine.speculative.{field}" in {problem.field for problem in found}


def test_layers_that_do_not_draft_for_a_model_are_refused_with_the_reason() -> None:
    model = {"source": "hf://meta-llama/Llama-3.1-8B-Instruct"}
    for asked, field, reason in (
        ({"method": "mtp"}, "speculative", "num_nextn_predict_layers"),
        (
            {"method": "eagle3", "draftModel": "hf://a/b", "draftConfig": SMALLER},
            "speculative.draftModel", "hidden_size 2048 is not the model's 4096",
        ),
        (
            {"method": "eagle3", "draftModel": "hf://meta-llama/Llama-3.2-1B"},
            "speculative.draftModel", "LlamaForCausalLM does not draft",
        ),
        (
            {"method": "draft_model", "draftModel": "hf://Qwen/Qwen3-0.6B"},
            "speculative.draftModel", "vocab_size 151936 is not the model's 128256",
        ),
        (
            {"method": "draft_model", "draftModel": "hf://a/b", "draftConfig": EAGLE3},
            "speculative.draftModel", "use method eagle3",
        ),
    ):  # fmt: skip
        found = problems(model=model, accelerator=MI300X, engine={"speculative": asked})
        assert {problem.field for problem in found} == {f"spec.engine.{field}"}
        assert reason in found[0].message
