"""What AITER cannot compute is said before weights are read, and left to another backend."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from atom.model_ops.activations import Activation, ClampedSwiGLU
from atom.model_ops.backends import _PREFERENCES, load_backend, resolve_ops
from atom.model_ops.backends.op_case import ExpertsCase, LayerShapes, OpCase
from atom.model_ops.index_values import IndexShape
from atom.model_ops.values import WeightFormat
from atom.self_test.attention_exercises import ASSEMBLY, GLUON, LATENT
from atom.self_test.exercises import CLAMPED, SIGMOID, SOFTMAX
from atom.sizing.mask_rule import sliding_window
from tests.support.aiter.aiter_models import amd_card
from tests.support.fake_aiter import GENERATIONS, installed
from tests.support.fake_aiter.record import functions

BF16 = OpCase(dtype=torch.bfloat16, kv_dtype=torch.bfloat16)
DENSE = replace(BF16, layers=LayerShapes(attention=(ASSEMBLY,)))
SMALL = replace(BF16, layers=LayerShapes(attention=(GLUON,)))
LATENTS = replace(BF16, layers=LayerShapes(latent=(LATENT,)))
MIXED = replace(
    BF16,
    experts=ExpertsCase(routings=(SOFTMAX,), formats=(WeightFormat.PLAIN,), sizes=((2048, 768),)),
)
FOUR_BITS = replace(
    MIXED, experts=replace(MIXED.experts, formats=(WeightFormat.MXFP4,)), activations=(CLAMPED,)
)


def _with_experts(case: OpCase, **changes: Any) -> OpCase:
    return replace(case, experts=replace(case.experts, **changes))


FNUZ, FN = torch.float8_e4m3fnuz, torch.float8_e4m3fn


def _shaped(case: OpCase, **changes: object) -> OpCase:
    shape = replace(case.layers.attention[0], **changes)
    return replace(case, layers=LayerShapes(attention=(shape,)))


def _latent(**changes: object) -> OpCase:
    return replace(LATENTS, layers=LayerShapes(latent=(replace(LATENT, **changes),)))


def _indexed(case: OpCase) -> OpCase:
    """The case with an indexer of sparse attention."""
    index = (IndexShape(16, 128, 64, 2048),)
    return replace(case, layers=replace(case.layers, index=index))


# Operation, case, card, and what the reason says.
REFUSED: dict[str, tuple[str, OpCase, str, str]] = {
    "float32": ("linear", replace(BF16, dtype=torch.float32), "gfx942", "not float32"),
    "float32 norms": ("norm", replace(BF16, wide_norms=True), "gfx942", "the model's dtype"),
    "gelu": ("act_and_mul", replace(BF16, activations=(Activation.GELU_TANH,)), "gfx942", "gelu"),
    "int4": ("linear", replace(BF16, formats=(WeightFormat.INT4,)), "gfx950", "no int4"),
    "ordered int4": (
        "linear", replace(BF16, formats=(WeightFormat.INT4_ORDERED,)), "gfx950", "no int4 ordered"
    ),
    "mxfp4": ("linear", replace(BF16, formats=(WeightFormat.MXFP4,)), "gfx942", "on gfx942"),
    "pages of 32": ("paged_attention", replace(DENSE, block_size=32), "gfx942", "16, not 32"),
    "soft caps": ("paged_attention", _shaped(DENSE, softcap=50.0), "gfx942", "soft cap"),
    "heads of 96": ("paged_attention", _shaped(SMALL, head_dim=96), "gfx942", "not 96"),
    "large groups": (
        "paged_attention",
        _shaped(SMALL, num_heads=128, num_kv_heads=1),
        "gfx942",
        "not 128",
    ),
    "fp8 with sinks": (
        "paged_attention", replace(SMALL, kv_dtype=FNUZ), "gfx942", "without sinks",
    ),
    "windows": (
        "qk_norm_rope_store", _shaped(DENSE, mask=sliding_window(4096)), "gfx942",
        "differ by a token",
    ),
    "the other e4m3": (
        "paged_attention", replace(DENSE, kv_dtype=FN), "gfx942", "converts float8_e4m3fnuz",
    ),
    "writing for such a decode": (
        "qk_norm_rope_store", replace(DENSE, block_size=32), "gfx942", "16, not 32",
    ),
    "short latents": (
        "mla_attention", _latent(kv_rank=256), "gfx942", "not 256 and 64",
    ),
    "12 heads of latents": ("mla_attention", _latent(num_heads=12), "gfx942", "not 12"),
    "an indexer": (
        "select_tokens", _indexed(LATENTS), "gfx942",
        "scales in one row",
    ),
    "a selection of short latents": (
        "sparse_mla_attention",
        _indexed(_latent(kv_rank=256)), "gfx942",
        "not 256 and 64",
    ),
    "sigmoids that sum to anything": (
        "route", _with_experts(MIXED, routings=(replace(SIGMOID, renormalize=False),)), "gfx942",
        "sum to one",
    ),
    "plain experts that are clamped": (
        "experts", replace(MIXED, activations=(CLAMPED,)), "gfx950", "clamped",
    ),
    "another clamp": (
        "experts", replace(FOUR_BITS, activations=(ClampedSwiGLU(1.7, 7.0),)), "gfx950",
        "limit 7.0",
    ),
    "four bits for inputs of sixteen": (
        "experts", replace(FOUR_BITS, activations=(Activation.SILU,)), "gfx950", "is not made",
    ),
    "four bits on another card": ("prepare_experts", FOUR_BITS, "gfx942", "mxfp4 on gfx942"),
    "four bits beside float16": (
        "experts", replace(FOUR_BITS, dtype=torch.float16), "gfx950", "not float16",
    ),
    "experts of several ranks": (
        "experts", _with_experts(MIXED, partial=True), "gfx942", "another rank's",
    ),
    "experts of four bits of several ranks": (
        "experts", _with_experts(FOUR_BITS, partial=True), "gfx950", "another rank's",
    ),
    "odd experts": ("experts", _with_experts(MIXED, sizes=((2048, 20),)), "gfx942", "not 20"),
    "experts of int8": (
        "experts", _with_experts(MIXED, formats=(WeightFormat.INT8,)), "gfx942", "int8",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_aiter_cannot_do_is_said(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    op, case, card, said = REFUSED[name]
    with amd_card(monkeypatch, "2026-08", card):
        (reason,) = load_backend("aiter").reasons_against(op, case)
    assert said in reason


@pytest.mark.parametrize("card", ["gfx942", "gfx950"])
@pytest.mark.parametrize("case", [DENSE, SMALL, LATENTS, MIXED])
def test_what_it_can_do_is_its_own(
    case: OpCase, card: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with amd_card(monkeypatch, "2026-08", card):
        backend = load_backend("aiter")
        refused = {op: backend.reasons_against(op, case) for op in backend.operations}
    assert not any(refused.values()), refused


@pytest.mark.parametrize("generation", GENERATIONS)
def test_every_generation_has_experts_of_four_bits(
    generation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_for = _with_experts(replace(FOUR_BITS, activations=(Activation.SILU,)), fp4_inputs=True)
    with amd_card(monkeypatch, generation, "gfx950"):
        backend = load_backend("aiter")
        for case in (FOUR_BITS, made_for):
            assert not backend.reasons_against("experts", case)
            assert not backend.reasons_against("prepare_experts", case)


def test_a_card_without_its_kernels_is_told_of_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with amd_card(monkeypatch, "2026-08", "gfx90a"), caplog.at_level("INFO"):
        chosen = resolve_ops("cpu", DENSE).chosen
    assert "aiter" not in chosen.values()
    assert caplog.text.count("aiter has kernels for gfx942 and gfx950, not gfx90a") == 1


def test_a_machine_without_aiter_is_told_what_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atom.utils.device.amd_architecture", lambda: "gfx942")
    (reason,) = load_backend("aiter").unusable
    assert "aiter is not installed" in reason
    assert "Dockerfile.rocm" in reason


def test_an_import_that_fails_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    with amd_card(monkeypatch, "2026-08"):
        monkeypatch.setattr(
            "atom.model_ops.backends.aiter_ops.library.import_module",
            lambda name: (_ for _ in ()).throw(OSError("libamdhip64.so is missing")),
        )
        (reason,) = load_backend("aiter").unusable
    assert reason == "import aiter failed: OSError: libamdhip64.so is missing"


def test_another_project_of_that_name_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    everything = [*functions("2026-08"), "aiter.ActivationType", "aiter.QuantType"]
    with amd_card(monkeypatch, "2026-08", lacking=everything):
        (reason,) = load_backend("aiter").unusable
    assert "is not AMD's" in reason


def test_auto_takes_aiter_first_on_rocm() -> None:
    assert _PREFERENCES["rocm"] == ("aiter", "triton", "torch_ref")


@pytest.mark.parametrize("generation", GENERATIONS)
def test_what_a_generation_lacks_is_an_import_error(generation: str) -> None:
    name = "aiter.ops.triton.gather_kv_b_proj"
    with installed(generation):
        if generation == "2026-02":
            with pytest.raises(ImportError):
                __import__(name, fromlist=["gather_kv_b_proj"])
        else:
            assert __import__(name, fromlist=["gather_kv_b_proj"]).gather_kv_b_proj
