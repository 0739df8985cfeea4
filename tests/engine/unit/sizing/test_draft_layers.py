"""A model's layers that draft, by hand, where they are unlike its last."""

from __future__ import annotations

from dataclasses import replace

from atom.sizing import (
    KV_ELEMENTS,
    ModelFacts,
    Speculation,
    kv_terms,
    unsupported,
)
from atom.sizing.drafting import mtp_problems

MIMO = {
    "architectures": ["MiMoV2FlashForCausalLM"],
    "torch_dtype": "bfloat16",
    "vocab_size": 152_576,
    "hidden_size": 4096,
    "intermediate_size": 16_384,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 48,
    "num_attention_heads": 64,
    "num_key_value_heads": 4,
    "swa_num_key_value_heads": 8,
    "head_dim": 192,
    "v_head_dim": 128,
    "sliding_window_size": 128,
    "max_position_embeddings": 262_144,
}
FP8 = {
    "quant_method": "fp8",
    "weight_block_size": [128, 128],
    "ignored_layers": [
        *(f"model.layers.{index}.self_attn.o_proj" for index in range(48)),
        "model.decoder.self_attn.o_proj",
    ],
}
# 64 heads and 8 of keys and values, of 192 and 128; an MLP of 16384
IN_FP8 = 4096 * (64 * 192 + 8 * (192 + 128)) + 3 * 4096 * 16_384
# what joins hidden state and embedding, and the output of attention; five norms and the sinks
PLAIN = 2 * 4096 * 4096 + 4096 * 64 * 128 + 5 * 4096 + 64


def draft_bytes(facts: ModelFacts, ranks: int = 1) -> int:
    with_layer = facts.weight_bytes(tensor_parallel=ranks, with_mtp=True)
    return with_layer - facts.weight_bytes(tensor_parallel=ranks)


def test_mimos_layer_has_a_window_and_a_dense_mlp() -> None:
    facts = ModelFacts.from_hf_config(MIMO)
    assert list(mtp_problems(facts)) == []
    assert draft_bytes(facts) == 2 * (IN_FP8 + PLAIN)
    halves = IN_FP8 + 4096 * 64 * 128 + 64
    assert draft_bytes(facts, ranks=2) == 2 * (PLAIN + IN_FP8 - halves // 2)
    (term,) = [
        term for term in kv_terms(facts, KV_ELEMENTS["bf16"], 1, Speculation(1)) if term.proposes
    ]
    # values are kept as wide as keys
    assert (term.layers, term.token_bytes, term.mask.window) == (1, 2 * 8 * 192 * 2, 129)


def test_mimos_layer_keeps_the_output_of_attention_plain_by_its_other_name() -> None:
    facts = ModelFacts.from_hf_config({**MIMO, "quantization_config": FP8})
    assert not list(unsupported(facts))
    scales = 4 * IN_FP8 // 128**2
    assert draft_bytes(facts) == IN_FP8 + scales + 2 * PLAIN == 396_466_816
    unnamed = {**FP8, "ignored_layers": FP8["ignored_layers"][:-1]}
    other = ModelFacts.from_hf_config({**MIMO, "quantization_config": unnamed})
    assert draft_bytes(other) < draft_bytes(facts)
    assert replace(other, mtp_layers=()).weight_bytes() == facts.weight_bytes()
