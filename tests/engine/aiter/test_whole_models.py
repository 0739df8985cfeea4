"""Whole models through AITER's adapters give what transformers gives, on every generation of AITER.

AITER is the double of its contracts, so a call that it would refuse fails here as well.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from atom.errors import ConfigError
from atom.model_ops.backends import resolve_ops
from atom.model_ops.backends.op_case import LayerShapes
from atom.model_ops.values import AttentionShape
from tests.engine.ops.inputs import BFLOAT16
from tests.support.aiter.aiter_models import (
    CLOSE,
    Model,
    amd_card,
    driver_of,
    make_model,
    make_quantised_model,
    worst_error,
)
from tests.support.fake_aiter import GENERATIONS
from tests.support.models.tiny_model import Architecture

_EXPERTS = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 128}
_LATENT = {
    "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "n_routed_experts": 8, "num_experts_per_tok": 3, "n_shared_experts": 1,
    "moe_intermediate_size": 64, "first_k_dense_replace": 1, "n_group": 4, "topk_group": 2,
    "routed_scaling_factor": 1.5,
}  # fmt: skip
# Options of a checkpoint; the functions of AITER that the model must have gone through.
MODELS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "qwen3": (
        {"architecture": "qwen3"},
        {"mm", "silu_and_mul", "rmsnorm2d_fwd_with_add", "flash_attn_varlen_func", "pa_fwd_asm",
         "fused_qk_norm_rope_cache_quant_shuffle"},
    ),
    "llama": (
        {"architecture": "llama", "kv_heads": 2, "attention_bias": True},
        {"rope_cached_positions_2c_fwd_inplace", "reshape_and_cache", "pa_fwd_asm"},
    ),
    "qwen2": ({"architecture": "qwen2", "kv_heads": 4}, {"reshape_and_cache", "pa_fwd_asm"}),
    "mistral in a window": (
        {"architecture": "mistral", "head_dim": 64, "kv_heads": 2,
         "extra": {"sliding_window": 24}},
        {"mm", "silu_and_mul"},
    ),
    "llama of small heads": (
        {"architecture": "llama", "head_dim": 64, "kv_heads": 2},
        {"reshape_and_cache", "pa_decode_gluon", "flash_attn_varlen_func"},
    ),
    # Soft caps, float32 norms and gelu are not AITER's; its products are.
    "gemma2": ({"architecture": "gemma2", "layers": 2}, {"mm"}),
    "gemma3": ({"architecture": "gemma3", "layers": 2}, {"mm"}),
    "mixtral": (
        {"architecture": "mixtral",
         "extra": {"num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": None}},
        {"topk_softmax", "fused_moe"},
    ),
    "qwen2-moe": (
        {"architecture": "qwen2_moe",
         "extra": {**_EXPERTS, "shared_expert_intermediate_size": 64, "mlp_only_layers": [0]}},
        {"topk_softmax", "fused_moe"},
    ),
    "qwen3-moe": (
        {"architecture": "qwen3_moe", "extra": {**_EXPERTS, "norm_topk_prob": True}},
        {"topk_softmax", "fused_moe", "fused_qk_norm_rope_cache_quant_shuffle"},
    ),
    "glm4-moe": (
        {"architecture": "glm4_moe",
         "extra": {"n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 64,
                   "n_group": 4, "topk_group": 2, "routed_scaling_factor": 1.5,
                   "use_qk_norm": True, "n_shared_experts": 1}},
        {"biased_grouped_topk", "fused_moe", "pa_fwd_asm"},
    ),
    # Its windows, clamped activation and experts are not AITER's.
    "gpt-oss": (
        {"architecture": "gpt_oss", "head_dim": 64, "kv_heads": 2, "attention_bias": True,
         "extra": {"num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 24}},
        {"topk_softmax", "mm", "rmsnorm2d_fwd_with_add"},
    ),
    # What is in one chunk AITER attends to; experts of weighed inputs are not its.
    "llama4": (
        {"architecture": "llama4", "layers": 4,
         "extra": {"num_local_experts": 5, "floor_scale": 16, "attention_chunk_size": 512,
                   "interleave_moe_layer_step": 2}},
        {"mm", "fused_qk_norm_rope_cache_quant_shuffle"},
    ),
    "deepseek2": (
        {"architecture": "deepseek2", "dtype": torch.bfloat16,
         "extra": {**_LATENT, "topk_method": "group_limited_greedy"}},
        {"grouped_topk", "fused_moe", "mla_decode_fwd", "concat_and_cache_mla"},
    ),
    "deepseek3": (
        {"architecture": "deepseek3", "heads": 16, "dtype": torch.bfloat16, "extra": _LATENT},
        {"biased_grouped_topk", "fused_moe", "mla_decode_fwd", "flash_attn_varlen_func"},
    ),
    # Its indexer is not AITER's; the attention to what it selects is.
    "deepseek32": (
        {"architecture": "deepseek32", "heads": 16, "dtype": torch.bfloat16,
         "extra": {**_LATENT, "index_topk": 20, "index_n_heads": 16, "index_head_dim": 128}},
        {"biased_grouped_topk", "fused_moe", "mla_decode_fwd"},
    ),
}  # fmt: skip
# Beside the tokens' own rounding gpt-oss' experts round values of a hundred; latents are bfloat16,
# whose roundings are 8 times those of float16; where these swap selected tokens for others, twice.
_CLOSE = {
    "gpt-oss": 2 * CLOSE,
    "deepseek2": 8 * CLOSE,
    "deepseek3": 8 * CLOSE,
    "deepseek32": 16 * CLOSE,
}


@pytest.fixture(scope="module", params=MODELS, ids=str)
def case(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Model]:
    folder = tmp_path_factory.mktemp("model")
    return request.param, make_model(folder, **MODELS[request.param][0])


@pytest.mark.sampled(6)
@pytest.mark.singles
@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_model_gives_what_transformers_gives(
    case: tuple[str, Model], generation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, model = case
    with amd_card(monkeypatch, generation) as aiter:
        dtype = str(MODELS[name][0].get("dtype", torch.float16)).removeprefix("torch.")
        assert worst_error(model, driver_of(model, dtype=dtype)) < _CLOSE.get(name, CLOSE)
    assert MODELS[name][1] <= {call.name for call in aiter.calls}
    assert not [call for call in aiter.calls if call.positional], "adapters pass keywords alone"


# Layout of a checkpoint, family, card; more options; the products of it; and of log-probabilities
# what roundings of activations may change.
QUANTISED: dict[str, tuple[str, Architecture, str, dict[str, Any], set[str], float]] = {
    "fp8 blocks to fnuz": (
        "fp8-blocks", "qwen3", "gfx942", {}, {"gemm_a8w8_blockscale_bpreshuffle"}, 0.6,
    ),
    "fp8 blocks and cache": (
        "fp8-blocks", "qwen3", "gfx950", {"kv_cache_dtype": "fp8"},
        {"gemm_a8w8_blockscale_bpreshuffle"}, 0.8,
    ),
    "fp8 rows": ("compressed-fp8-rows", "llama", "gfx950", {}, {"gemm_a8w8_bpreshuffle"}, 0.8),
    "int8": ("compressed-int8", "llama", "gfx942", {}, {"gemm_a8w8"}, 0.2),
    "mxfp4 weights": (
        "quark-mxfp4-weights", "llama", "gfx950", {"dtype": "bfloat16"}, {"gemm_a16wfp4"}, 0.2,
    ),
    "mxfp4": ("quark-mxfp4", "llama", "gfx950", {"dtype": "bfloat16"}, {"gemm_a4w4"}, 0.8),
    "mxfp4 elsewhere": ("quark-mxfp4", "llama", "gfx942", {"dtype": "bfloat16"}, set(), 0.2),
    "fp8 experts": (
        "fp8-blocks", "qwen3_moe", "gfx950", {}, {"fused_moe", "topk_softmax"}, 0.6,
    ),
    "mxfp4 experts": (
        "quark-mxfp4", "qwen3_moe", "gfx950", {"dtype": "bfloat16"}, {"fused_moe", "gemm_a4w4"},
        0.8,
    ),
    "gpt-oss": (
        "mxfp4", "gpt_oss", "gfx950", {"dtype": "bfloat16"}, {"fused_moe", "topk_softmax"}, 0.3,
    ),
    "gpt-oss elsewhere": (
        "mxfp4", "gpt_oss", "gfx942", {"dtype": "bfloat16"}, {"topk_softmax"}, 0.3,
    ),
}  # fmt: skip


_OF_FAMILY: dict[str, dict[str, Any]] = {
    "qwen3_moe": {"extra": {**_EXPERTS, "norm_topk_prob": True}},
    "gpt_oss": {
        "extra": {"num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 24},
        "sizes": {"head_dim": 64, "kv_heads": 2},
        "leave": "self_attn",
    },
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", QUANTISED)
def test_a_quantised_model_gives_what_transformers_gives(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout, architecture, card, options, functions, close = QUANTISED[name]
    model = make_quantised_model(tmp_path, layout, architecture, **_OF_FAMILY.get(architecture, {}))
    with amd_card(monkeypatch, "2026-08", card) as aiter:
        assert worst_error(model, driver_of(model, **options)) < close
    called = {call.name for call in aiter.calls}
    assert functions <= called
    assert functions or not any("gemm" in name for name in called), "left to another backend"
    assert ("fused_moe" in called) == ("fused_moe" in functions)


def test_an_aiter_without_a_function_leaves_its_operations_to_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = make_model(tmp_path, architecture="qwen3")
    lacking = ["aiter.pa_fwd_asm"]
    with amd_card(monkeypatch, "2026-08", lacking=lacking) as aiter, caplog.at_level("INFO"):
        assert worst_error(model, driver_of(model)) < CLOSE
    assert "aiter 2026-08 has no pa_fwd_asm" in caplog.text
    called = {call.name for call in aiter.calls}
    assert "mm" in called
    assert "fused_qk_norm_rope_cache_quant_shuffle" not in called, "who decodes also fills blocks"


def test_half_of_a_pair_that_aiter_arranges_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = AttentionShape(8, 1, 128, 128**-0.5)
    asked = replace(BFLOAT16, layers=LayerShapes(attention=(shape,)))
    with amd_card(monkeypatch, "2026-08"):
        chosen = resolve_ops("cpu", asked).chosen
        assert chosen["paged_attention"] == chosen["qk_norm_rope_store"] == "aiter"
        other = resolve_ops("cpu", asked, overrides={"paged_attention": "torch_ref"}).chosen
        assert other["qk_norm_rope_store"] == "torch_ref"
        halves = {"paged_attention": "torch_ref", "qk_norm_rope_store": "aiter"}
        with pytest.raises(ConfigError, match="which reads another arrangement"):
            resolve_ops("cpu", asked, overrides=halves)
