"""Whole models through AITER's adapters give what transformers gives, on every generation of AITER.

AITER is the double of its contracts, so a call that it would refuse fails here as well.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from atom.model_ops.backends import resolve_ops
from tests.support.aiter_models import CLOSE, Model, amd_card, driver_of, make_model, worst_error
from tests.support.fake_aiter import GENERATIONS

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
    "mistral in a window": (
        {"architecture": "mistral", "head_dim": 64, "kv_heads": 2,
         "extra": {"sliding_window": 24}},
        {"reshape_and_cache", "pa_decode_gluon", "flash_attn_varlen_func"},
    ),
}  # fmt: skip


@pytest.fixture(scope="module", params=MODELS, ids=str)
def case(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Model, set[str]]:
    options, functions = MODELS[request.param]
    return make_model(tmp_path_factory.mktemp("model"), **options), functions


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_model_gives_what_transformers_gives(
    case: tuple[Model, set[str]], generation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, functions = case
    with amd_card(monkeypatch, generation) as aiter:
        assert worst_error(model, driver_of(model)) < CLOSE
    assert functions <= {call.name for call in aiter.calls}
    assert not [call for call in aiter.calls if call.positional], "adapters pass keywords alone"


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
    from dataclasses import replace

    import torch

    from atom.errors import ConfigError
    from atom.model_ops.values import AttentionShape
    from tests.engine.ops.inputs import BFLOAT16

    shape = AttentionShape(8, 1, 128, 128**-0.5)
    asked = replace(BFLOAT16, dtype=torch.bfloat16, attention=(shape,))
    with amd_card(monkeypatch, "2026-08"):
        chosen = resolve_ops("cpu", asked).chosen
        assert chosen["paged_attention"] == chosen["qk_norm_rope_store"] == "aiter"
        other = resolve_ops("cpu", asked, overrides={"paged_attention": "torch_ref"}).chosen
        assert other["qk_norm_rope_store"] == "torch_ref"
        halves = {"paged_attention": "torch_ref", "qk_norm_rope_store": "aiter"}
        with pytest.raises(ConfigError, match="which reads another arrangement"):
            resolve_ops("cpu", asked, overrides=halves)
