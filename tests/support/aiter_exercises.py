"""What AITER's adapters are put through, operation by operation, and compared with the reference.

An exercise gets the backend's operations and raises where a result is not the reference's, which
computes in float32. Values are float16 where nothing else is said: its roundings are the smallest,
and so is what an error may hide behind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from atom.model_ops.backends import _load as load_backend
from atom.model_ops.quantised.quantise import quantise
from atom.model_ops.routing import Routed, Routing, Scoring
from atom.model_ops.values import (
    Activation,
    AttentionShape,
    ExpertsWeight,
    LatentCache,
    LatentShape,
    LatentTokens,
    LayerCache,
    LinearWeight,
    NormWeight,
    Rotary,
    RouterWeight,
    Scales,
    Stream,
    WeightFormat,
)
from atom.utils.forward_context import AttentionMetaData
from tests.engine.ops.inputs import assert_rows_agree

Ops = dict[str, Callable[..., Any]]
HALF = torch.float16
BLOCK_SIZE = 16
EPSILON = 0.5  # so large that forgetting it shows
# Roundings of activations to 8 bits, which the reference has none of.
EIGHT_BITS = 25.0


def reference() -> Ops:
    return load_backend("torch_ref").operations


def draw(*size: int, dtype: torch.dtype = HALF, scale: float = 1.0) -> torch.Tensor:
    return (torch.randn(size) * scale).to(dtype)


def agree(out: torch.Tensor, expected: torch.Tensor, slack: float = 2.0) -> None:
    assert out.dtype is HALF
    assert_rows_agree(out, expected, HALF, slack)


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
    """A matrix, or a stack of them, in a format; scales of neighbours differ."""
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
    """Rows, and blocks of 128 of them, of different sizes, so that a scale of another shows."""
    rows = torch.exp2(torch.randint(-spread, spread + 1, (*size[:-1], 1)).float())
    blocks = torch.exp2(-(torch.arange(size[-2]) // 128 % 2).float()).unsqueeze(1)
    return torch.randn(size) * 0.1 * rows * blocks


def quantised_product(kind: WeightFormat, *, outputs: int = 256) -> Callable[[Ops], None]:
    def exercise(ops: Ops) -> None:
        dtype = torch.bfloat16 if kind is WeightFormat.MXFP4 else HALF
        w = replace(stored(kind, _uneven(outputs, 256), dtype), bias=draw(outputs, dtype=dtype))
        x = _uneven(6, 256).to(dtype)
        out = ops["linear"](x, ops["prepare_linear"](w))
        assert w.bias is not None
        wide = replace(w, bias=w.bias.float())
        expected = reference()["linear"](x.float(), wide)
        assert out.dtype is dtype
        agree(out.to(HALF), expected, EIGHT_BITS)

    return exercise


# ---- attention --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """sequence: whose; context: with the tokens of this step; queries: these."""

    sequence: int
    context: int
    queries: int


def step_of(rows: Sequence[Row], *, padding: int = 0) -> tuple[torch.Tensor, AttentionMetaData]:
    """Positions, and the metadata of a step over 3 blocks of 16 for each of 4 sequences; padding:
    rows of nobody behind the decodes."""
    tables = torch.arange(12).view(4, 3).flip(0).to(torch.int32)
    positions = torch.cat([torch.arange(row.context - row.queries, row.context) for row in rows])
    owner = torch.cat([torch.full((row.queries,), row.sequence) for row in rows])
    slots = tables[owner, positions // BLOCK_SIZE].long() * BLOCK_SIZE + positions % BLOCK_SIZE
    counts = torch.tensor([row.queries for row in rows] + [1] * padding)
    decodes = sum(row.queries == 1 for row in rows) + padding
    nobody = torch.full((padding,), -1)
    step = AttentionMetaData(
        query_starts=torch.cat((torch.zeros(1), counts.cumsum(0))).to(torch.int32),
        context_lens=torch.tensor([row.context for row in rows] + [0] * padding).to(torch.int32),
        block_tables=torch.cat(
            (tables[[row.sequence for row in rows]], tables.new_zeros(padding, 3))
        ),
        slot_mapping=torch.cat((slots, nobody)),
        num_decodes=decodes,
        max_query_len=max(row.queries for row in rows),
        max_context_len=max(row.context for row in rows),
        prompt_context=sum(row.context for row in rows if row.queries > 1),
    )
    return torch.cat((positions, nobody.clamp_min(0))), step


# Whole prompts; then decodes beside a chunk behind its history, as a chunk of its own.
STEPS = (
    (Row(0, 20, 20), Row(1, 33, 33), Row(3, 7, 7)),
    (Row(0, 21, 1), Row(3, 8, 1), Row(1, 38, 5)),
    (Row(3, 9, 1), Row(2, 17, 17)),
)


def attention(
    shape: AttentionShape, *, normed: bool, kv_dtype: torch.dtype = HALF
) -> Callable[[Ops], None]:
    """fp8: a cache with scales."""

    def exercise(ops: Ops) -> None:
        heads, table = shape.num_heads + 2 * shape.num_kv_heads, torch.rand(64, shape.head_dim)
        weights = [draw(shape.head_dim) for _ in range(2)] if normed else []
        own, wide = (
            [NormWeight(weight.to(dtype), EPSILON) for weight in weights] or [None, None]
            for dtype in (HALF, torch.float32)
        )
        cache, clean = _cache(shape, kv_dtype), _cache(shape, torch.float32)
        slack = 2.0 if kv_dtype is HALF else EIGHT_BITS
        for rows in STEPS:
            positions, step = step_of(rows)
            qkv = draw(len(positions), heads * shape.head_dim)
            out = ops["attention"](qkv.clone(), shape, Rotary(table, positions, *own), cache, step)
            rotary = Rotary(table, positions, *wide)
            q = reference()["qk_norm_rope_store"](
                qkv.float(), shape, rotary, clean, step.slot_mapping
            )
            expected = reference()["paged_attention"](q, shape, clean, step)
            agree(out, expected, slack)
            # The same by its two parts.
            q = ops["qk_norm_rope_store"](
                qkv.clone(), shape, Rotary(table, positions, *own), cache, step.slot_mapping
            )
            agree(ops["paged_attention"](q, shape, cache, step), expected, slack)
        positions, step = step_of((Row(0, 22, 1),), padding=2)
        qkv = draw(3, heads * shape.head_dim)
        before = cache.k.view(torch.uint8).clone()
        out = ops["attention"](qkv, shape, Rotary(table, positions, *own), cache, step)
        changed = (cache.k.view(torch.uint8) != before).flatten(1).any(1).sum()
        assert changed == 1, "padding writes nothing"
        assert not out[1:].any(), "padding attends to nothing"

    return exercise


def _cache(shape: AttentionShape, dtype: torch.dtype) -> LayerCache:
    size = (12, BLOCK_SIZE, shape.num_kv_heads, shape.head_dim)
    k, v = (torch.zeros(size, dtype=dtype) for _ in range(2))
    if dtype.itemsize > 1:
        return LayerCache(k, v)
    return LayerCache(k, v, torch.zeros(size[:3]), torch.zeros(size[:3]))


ASSEMBLY = AttentionShape(16, 2, 128, 128**-0.5)
GLUON = AttentionShape(8, 2, 64, 0.2, window=10, has_sinks=True, sinks=torch.linspace(-2.0, 3.0, 8))

LATENT = LatentShape(num_heads=16, nope_dim=128, rope_dim=64, kv_rank=512, value_dim=128, scale=0.1)


def latent_attention(ops: Ops) -> None:
    shape, table = LATENT, torch.rand(64, LATENT.rope_dim)
    weight = draw(shape.kv_rank)
    up = LinearWeight(draw(shape.num_heads * 256, shape.kv_rank, scale=0.03))
    cache = LatentCache(torch.zeros(12, BLOCK_SIZE, shape.entry_dim, dtype=HALF))
    clean = LatentCache(torch.zeros(12, BLOCK_SIZE, shape.entry_dim))
    width = shape.num_heads * shape.head_dim
    for rows in STEPS:
        positions, step = step_of(rows)
        both = draw(len(positions), width + shape.entry_dim)
        results = []
        for dtype, own, kept, matrix in (
            (HALF, ops, cache, up),
            (torch.float32, reference(), clean, LinearWeight(up.data.float())),
        ):
            q, entries = both.clone().to(dtype).split([width, shape.entry_dim], dim=1)
            tokens = LatentTokens(q.unflatten(1, (shape.num_heads, -1)), entries)
            rotary = Rotary(table, positions, None, NormWeight(weight.to(dtype), EPSILON))
            tokens = own["latent_rope_store"](tokens, shape, rotary, kept, step.slot_mapping)
            out = own["paged_latent_attention"](tokens, shape, matrix, kept, step)
            results.append((tokens.q, tokens.entries, out))
        for out, expected in zip(*results, strict=True):
            agree(out, expected)
    _, step = step_of((Row(0, 21, 1),), padding=2)
    tokens = LatentTokens(draw(3, shape.num_heads, shape.head_dim), draw(3, shape.entry_dim))
    out = ops["paged_latent_attention"](tokens, shape, up, cache, step)
    assert not out[1:].any(), "padding attends to nothing"


# ---- experts ----------------------------------------------------------------------------------


def routing(rule: Routing, *, corrected: bool = False) -> Callable[[Ops], None]:
    def exercise(ops: Ops) -> None:
        x, matrix, bias = draw(9, 64), draw(16, 64, scale=0.2), draw(16)
        correction = torch.randn(16) * 0.2 if corrected else None
        w = RouterWeight(LinearWeight(matrix, bias), correction)
        wide = RouterWeight(LinearWeight(matrix.float(), bias.float()), correction)
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
            own = [LinearWeight(gate_up.to(HALF)), LinearWeight(down.to(HALF))]
            wide = [LinearWeight(w.data.float()) for w in own]
        else:
            own = wide = [stored(kind, gate_up), stored(kind, down)]
        expected = reference()["experts"](x.float(), ExpertsWeight(*wide, Activation.SILU), routed)
        prepared = [ops["prepare_experts"](w) for w in own]
        out = ops["experts"](x, ExpertsWeight(*prepared, Activation.SILU), routed)
        # Activations are rounded twice.
        agree(out, expected, 2.0 if kind is WeightFormat.PLAIN else 2 * EIGHT_BITS)

    return exercise


SOFTMAX = Routing(top_k=4, renormalize=True, scale=1.5)
GROUPED = Routing(top_k=3, groups=4, groups_kept=2, scale=1.5)
SIGMOID = Routing(
    top_k=3, scoring=Scoring.SIGMOID, groups=4, groups_kept=2, group_top=2, renormalize=True,
    scale=2.5,
)  # fmt: skip
FNUZ = torch.float8_e4m3fnuz

# By name; the cards that have what it takes.
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
            "int8 product": quantised_product(WeightFormat.INT8),
            "normed attention": attention(ASSEMBLY, normed=True),
            "attention": attention(ASSEMBLY, normed=False),
            "attention in a window with sinks": attention(GLUON, normed=False),
            "latent attention": latent_attention,
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
            "attention to fp8": attention(ASSEMBLY, normed=False, kv_dtype=torch.float8_e4m3fn),
            "normed attention to fp8": attention(
                ASSEMBLY, normed=True, kv_dtype=torch.float8_e4m3fn
            ),
        },
    }.items()
    for name, exercise in exercises.items()
}
