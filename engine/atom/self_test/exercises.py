"""Exercises of a backend, operation by operation, compared with the reference.

An exercise gets the backend's operations and raises `AssertionError` if a result differs from the
reference, which computes in float32 on the same device (torch's default one). Values are float16 by
default: its roundings are the smallest, so they hide the smallest errors. Sizes are those of
AITER's kernels. Tests run AITER's adapters through them, and `atom preflight --report` a card.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from atom.model_ops.activations import Activation, ClampedSwiGLU, Gating
from atom.model_ops.quantised.quantise import quantise
from atom.model_ops.routing import Routed, Routing, Scoring
from atom.model_ops.values import (
    ExpertsWeight,
    LinearWeight,
    NormWeight,
    RouterWeight,
    Scales,
    Stream,
    WeightFormat,
)
from atom.self_test.attention_exercises import (
    ASSEMBLY,
    GLUON,
    attention,
    latent_attention,
    sparse_mla_attention,
)
from atom.self_test.comparison import (
    BFLOAT16,
    EIGHT_BITS,
    EPSILON,
    FOUR_BITS,
    HALF,
    Ops,
    agree,
    draw,
    reference,
)

# ---- per token --------------------------------------------------------------------------------


def norms(ops: Ops) -> None:
    x, residual, weight = draw(5, 64), draw(5, 64), draw(64)
    norm, wide = NormWeight(weight, EPSILON), NormWeight(weight.float(), EPSILON)
    agree(ops["rms_norm"](x.clone(), norm), reference()["rms_norm"](x.float(), wide))
    stream = Stream(residual.clone()).plus(x.clone())
    out, settled = ops["norm"](stream, norm)
    expected, total = reference()["norm"](Stream(residual.float()).plus(x.float()), wide)
    agree(out, expected)
    agree(settled.residual, total.residual)


def activation(ops: Ops) -> None:
    x = draw(5, 64)
    expected = reference()["act_and_mul"](x.float(), Activation.SILU)
    agree(ops["act_and_mul"](x, Activation.SILU), expected)


def product(ops: Ops) -> None:
    x, w = draw(5, 64), LinearWeight(draw(48, 64, scale=0.1), draw(48))
    out = ops["linear"](x, ops["prepare_linear"](w))
    assert w.bias is not None
    wide = LinearWeight(w.data.float(), w.bias.float())
    agree(out, reference()["linear"](x.float(), wide))


def stored(kind: WeightFormat, data: torch.Tensor, dtype: torch.dtype = HALF) -> LinearWeight:
    """Make a matrix, or a stack of them, in a format; neighbours have different scales."""
    inputs = data.shape[-1]
    block = {
        WeightFormat.FP8_BLOCKS: (128, 128),
        WeightFormat.MXFP4: (1, 32),
    }.get(kind, (1, inputs))
    if data.dim() == 3:
        made = [quantise(matrix, kind, block) for matrix in data]
        codes = torch.stack([code.view(torch.uint8) for code, _ in made]).view(made[0][0].dtype)
        scale = torch.stack([scale for _, scale in made])
    else:
        codes, scale = quantise(data, kind, block)
    return LinearWeight(codes, None, Scales(kind, scale, block, dtype))


def _uneven(*size: int, spread: int = 3) -> torch.Tensor:
    """Make rows, and blocks of 128 of them, of different sizes, so that a wrong scale shows."""
    rows = torch.exp2(torch.randint(-spread, spread + 1, (*size[:-1], 1)).float())
    blocks = torch.exp2(-(torch.arange(size[-2]) // 128 % 2).float()).unsqueeze(1)
    return torch.randn(size) * 0.1 * rows * blocks


def quantised_product(
    kind: WeightFormat, *, outputs: int = 256, fp4_inputs: bool = False
) -> Callable[[Ops], None]:
    def exercise(ops: Ops) -> None:
        dtype = torch.bfloat16 if kind is WeightFormat.MXFP4 else HALF
        w = replace(stored(kind, _uneven(outputs, 256), dtype), bias=draw(outputs, dtype=dtype))
        w = _for_fp4_inputs(w) if fp4_inputs else w
        x = _uneven(6, 256).to(dtype)
        out = ops["linear"](x, ops["prepare_linear"](w))
        assert w.bias is not None
        wide = replace(w, bias=w.bias.float())
        expected = reference()["linear"](x.float(), wide)
        # Of few outputs one decides a row's norm, and its rounding is not made up for by others'.
        slack = FOUR_BITS if fp4_inputs else EIGHT_BITS
        agree(out, expected, slack * (1 if outputs > 64 else 2), dtype)

    return exercise


def _for_fp4_inputs(w: LinearWeight) -> LinearWeight:
    assert w.scales is not None
    return replace(w, scales=replace(w.scales, fp4_inputs=True))


def normed_product(kind: WeightFormat) -> Callable[[Ops], None]:
    """Build an exercise of norm and product, with and without something pending, and gated."""

    def exercise(ops: Ops) -> None:
        x, residual, norm = draw(6, 256), draw(6, 256), NormWeight(draw(256), EPSILON)
        wide_norm = NormWeight(norm.weight.float(), EPSILON)
        plain = kind is WeightFormat.PLAIN
        w = (
            LinearWeight(draw(256, 256, scale=0.1))
            if plain
            else stored(kind, _uneven(256, 256, spread=1))
        )
        own, wide = ops["prepare_linear"](w), replace(w, data=w.data.float()) if plain else w
        slack = 2.0 if plain else EIGHT_BITS
        for pending in (False, True):
            streams = [
                Stream(residual.to(dtype, copy=True)).plus(x.to(dtype, copy=True))
                if pending
                else Stream(residual.to(dtype, copy=True))
                for dtype in (HALF, HALF, torch.float32)
            ]
            normed, settled = reference()["norm"](streams[2], wide_norm)
            expected = reference()["linear"](normed, wide)
            out, stream = ops["norm_linear"](streams[0], norm, own)
            agree(out, expected, slack)
            agree(stream.residual, settled.residual)
            gated, _ = ops["norm_gated_linear"](streams[1], norm, own, Activation.SILU)
            agree(gated, reference()["act_and_mul"](expected, Activation.SILU), 3 * slack)

    return exercise


# ---- experts ----------------------------------------------------------------------------------


def routing(rule: Routing, *, corrected: bool = False) -> Callable[[Ops], None]:
    def exercise(ops: Ops) -> None:
        x, matrix, bias = draw(9, 64), draw(16, 64, scale=0.2), draw(16)
        e_score_correction_bias = torch.randn(16) * 0.2 if corrected else None
        w = RouterWeight(LinearWeight(matrix, bias), e_score_correction_bias)
        wide = RouterWeight(LinearWeight(matrix.float(), bias.float()), e_score_correction_bias)
        routed, expected = ops["route"](x, w, rule), reference()["route"](x.float(), wide, rule)
        dense = [
            torch.zeros(9, 16).scatter_(1, each.ids.long(), each.weights)
            for each in (routed, expected)
        ]
        assert routed.ids.dtype is torch.int32
        agree(dense[0].to(HALF), dense[1])

    return exercise


def experts(kind: WeightFormat) -> Callable[[Ops], None]:
    def exercise(ops: Ops) -> None:
        count, hidden, inner = 4, 256, 128
        gate_up = _uneven(count, 2 * inner, hidden, spread=1)
        down = _uneven(count, hidden, inner)
        x = draw(7, hidden)
        weights = torch.rand(7, 2)
        routed = Routed(torch.rand(7, count).topk(2).indices.to(torch.int32), weights)
        if kind is WeightFormat.PLAIN:
            own = (LinearWeight(gate_up.to(HALF)), LinearWeight(down.to(HALF)))
            wide = (LinearWeight(own[0].data.float()), LinearWeight(own[1].data.float()))
        else:
            own = wide = (stored(kind, gate_up), stored(kind, down))
        expected = reference()["experts"](
            x.float(), ExpertsWeight(wide[0], wide[1], Activation.SILU), routed
        )
        first, second = (ops["prepare_experts"](w) for w in own)
        out = ops["experts"](x, ExpertsWeight(first, second, Activation.SILU), routed)
        # Activations are rounded twice.
        agree(out, expected, 2.0 if kind is WeightFormat.PLAIN else 3 * EIGHT_BITS)

    return exercise


CLAMPED = ClampedSwiGLU(alpha=1.702, limit=7.0)


def fp4_experts(
    gating: Gating, *, tokens: int = 7, fp4_inputs: bool = False
) -> Callable[[Ops], None]:
    """Build an exercise of MXFP4 experts of sizes that are no tiles; with biases if the activation
    is clamped."""

    def exercise(ops: Ops) -> None:
        count, hidden, inner, dtype = 3, 288, 96, torch.bfloat16
        first = stored(WeightFormat.MXFP4, _uneven(count, 2 * inner, hidden, spread=1), dtype)
        second = stored(WeightFormat.MXFP4, _uneven(count, hidden, inner), dtype)
        first = replace(first, gating=gating)
        if fp4_inputs:
            first, second = _for_fp4_inputs(first), _for_fp4_inputs(second)
        else:
            first = replace(first, bias=draw(count, 2 * inner, dtype=dtype))
            second = replace(second, bias=draw(count, hidden, dtype=dtype, scale=30.0))
        # Large enough for the clamp.
        x = draw(tokens, hidden, dtype=dtype, scale=3.0)
        ids = torch.rand(tokens, count).topk(2).indices.to(torch.int32)
        routed = Routed(ids, torch.rand(tokens, 2))
        wide = ExpertsWeight(_wide(first), _wide(second), gating)
        expected = reference()["experts"](x.float(), wide, routed)
        own = ExpertsWeight(ops["prepare_experts"](first), ops["prepare_experts"](second), gating)
        out = ops["experts"](x, own, routed)
        # Activations are rounded twice.
        slack = 3 * EIGHT_BITS if tokens > 100 else 2 * BFLOAT16
        agree(out, expected, 3 * FOUR_BITS if fp4_inputs else slack, dtype)

    return exercise


def _wide(w: LinearWeight) -> LinearWeight:
    return w if w.bias is None else replace(w, bias=w.bias.float())


SOFTMAX = Routing(top_k=4, renormalize=True, scale=1.5)
GROUPED = Routing(top_k=3, groups=4, groups_kept=2, scale=1.5)
SIGMOID = Routing(
    top_k=3, scoring=Scoring.SIGMOID, groups=4, groups_kept=2, group_top=2, renormalize=True,
    scale=2.5,
)  # fmt: skip
FNUZ = torch.float8_e4m3fnuz

# By name; the cards that support it.
EXERCISES: dict[str, tuple[Callable[[Ops], None], tuple[str, ...]]] = {
    name: (exercise, cards)
    for cards, exercises in {
        ("gfx942", "gfx950"): {
            "norms": norms,
            "activation": activation,
            "product": product,
            "fp8 product": quantised_product(WeightFormat.FP8),
            "fp8 product of odd outputs": quantised_product(WeightFormat.FP8, outputs=40),
            "fp8 product of blocks": quantised_product(WeightFormat.FP8_BLOCKS),
            "normed product": normed_product(WeightFormat.PLAIN),
            "normed fp8 product": normed_product(WeightFormat.FP8),
            "int8 product": quantised_product(WeightFormat.INT8),
            "normed attention": attention(ASSEMBLY, normed=True),
            "attention": attention(ASSEMBLY, normed=False),
            "attention with sinks": attention(GLUON, normed=False),
            "latent attention": latent_attention,
            "selected latent attention": sparse_mla_attention,
            "softmax router": routing(SOFTMAX),
            "grouped router": routing(GROUPED),
            "sigmoid router": routing(SIGMOID, corrected=True),
            "experts": experts(WeightFormat.PLAIN),
            "fp8 experts": experts(WeightFormat.FP8),
            "fp8 experts of blocks": experts(WeightFormat.FP8_BLOCKS),
        },
        ("gfx942",): {
            "attention to fnuz": attention(ASSEMBLY, normed=False, kv_dtype=FNUZ),
        },
        ("gfx950",): {
            "mxfp4 product": quantised_product(WeightFormat.MXFP4),
            "mxfp4 product of mxfp4": quantised_product(WeightFormat.MXFP4, fp4_inputs=True),
            "clamped experts": fp4_experts(CLAMPED),
            "clamped experts of many tokens": fp4_experts(CLAMPED, tokens=600),
            "mxfp4 experts": fp4_experts(Activation.SILU, fp4_inputs=True),
            "attention to fp8": attention(ASSEMBLY, normed=False, kv_dtype=torch.float8_e4m3fn),
            "normed attention to fp8": attention(
                ASSEMBLY, normed=True, kv_dtype=torch.float8_e4m3fn
            ),
        },
    }.items()
    for name, exercise in exercises.items()
}
