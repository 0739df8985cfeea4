"""Exercises of attention over a paged cache: prompts, chunks after a history, decodes, padding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from atom.model_ops.values import (
    AttentionShape,
    LatentCache,
    LatentShape,
    LatentTokens,
    LayerCache,
    LinearWeight,
    NormWeight,
    Rotary,
)
from atom.self_test.comparison import (
    BFLOAT16,
    EIGHT_BITS,
    EPSILON,
    HALF,
    Ops,
    agree,
    draw,
    reference,
)
from atom.utils.forward_context import AttentionMetaData, PromptPlan

BLOCK_SIZE = 16


@dataclass(frozen=True)
class Row:
    """A row of an attention step. sequence: the index of its sequence; context: tokens including
    those of this step; queries: tokens of this step."""

    sequence: int
    context: int
    queries: int


def step_of(rows: Sequence[Row], *, padding: int = 0) -> tuple[torch.Tensor, AttentionMetaData]:
    """Return positions, and the metadata of a step over 3 blocks of 16 for each of 4 sequences;
    padding: padding rows after the decodes."""
    tables = torch.arange(12).view(4, 3).flip(0).to(torch.int32)
    positions = torch.cat([torch.arange(row.context - row.queries, row.context) for row in rows])
    owner = torch.cat([torch.full((row.queries,), row.sequence) for row in rows])
    slots = tables[owner, positions // BLOCK_SIZE].long() * BLOCK_SIZE + positions % BLOCK_SIZE
    counts = torch.tensor([row.queries for row in rows] + [1] * padding)
    decodes = sum(row.queries == 1 for row in rows) + padding
    padded = torch.full((padding,), -1)
    step = AttentionMetaData(
        query_starts=torch.cat((torch.zeros(1), counts.cumsum(0))).to(torch.int32),
        context_lens=torch.tensor([row.context for row in rows] + [0] * padding).to(torch.int32),
        block_tables=torch.cat(
            (tables[[row.sequence for row in rows]], tables.new_zeros(padding, 3))
        ),
        slot_mapping=torch.cat((slots, padded)),
        num_decodes=decodes,
        max_query_len=max(row.queries for row in rows),
        max_context_len=max(row.context for row in rows),
        prompts=PromptPlan(context=sum(row.context for row in rows if row.queries > 1)),
    )
    return torch.cat((positions, padded.clamp_min(0))), step


# Whole prompts; then decodes with a chunk after its history, as a separate chunk.
STEPS = (
    (Row(0, 20, 20), Row(1, 33, 33), Row(3, 7, 7)),
    (Row(0, 21, 1), Row(3, 8, 1), Row(1, 38, 5)),
    (Row(3, 9, 1), Row(2, 17, 17)),
)


def attention(
    asked: AttentionShape, *, normed: bool, kv_dtype: torch.dtype = HALF
) -> Callable[[Ops], None]:
    """Build an exercise of attention over a cache of `kv_dtype`; fp8 has scales."""

    def exercise(ops: Ops) -> None:
        shape = _with_sinks(asked)
        heads, table = shape.num_heads + 2 * shape.num_kv_heads, torch.rand(64, shape.head_dim)
        weights = [draw(shape.head_dim) for _ in range(2)] if normed else []
        own, wide = (_head_norms(weights, dtype) for dtype in (HALF, torch.float32))
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
            # The step by its two parts.
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


def _with_sinks(shape: AttentionShape) -> AttentionShape:
    """Add the sinks to the shape. They are made here, where torch's default device is the card."""
    if not shape.has_sinks:
        return shape
    return replace(shape, sinks=torch.linspace(-2.0, 3.0, shape.num_heads))


def _head_norms(
    weights: list[torch.Tensor], dtype: torch.dtype
) -> tuple[NormWeight | None, NormWeight | None]:
    if not weights:
        return None, None
    q, k = (NormWeight(weight.to(dtype), EPSILON) for weight in weights)
    return q, k


def _cache(shape: AttentionShape, dtype: torch.dtype) -> LayerCache:
    size = (12, BLOCK_SIZE, shape.num_kv_heads, shape.head_dim)
    k, v = (torch.zeros(size, dtype=dtype) for _ in range(2))
    if dtype.itemsize > 1:
        return LayerCache(k, v)
    return LayerCache(k, v, torch.zeros(size[:3]), torch.zeros(size[:3]))


ASSEMBLY = AttentionShape(16, 2, 128, 128**-0.5)
GLUON = AttentionShape(8, 2, 64, 0.2, has_sinks=True)

LATENT = LatentShape(num_heads=16, nope_dim=128, rope_dim=64, kv_rank=512, value_dim=128, scale=0.1)


def sparse_mla_attention(ops: Ops) -> None:
    """Check sparse MLA of slots in any order, with fewer than there might be anywhere among
    them."""
    shape, dtype = LATENT, torch.bfloat16
    up = LinearWeight(draw(shape.num_heads * 256, shape.kv_rank, dtype=dtype, scale=0.03))
    entries = draw(12, BLOCK_SIZE, shape.entry_dim, dtype=dtype)
    cache, clean = LatentCache(entries), LatentCache(entries.float())
    q = draw(5, shape.num_heads, shape.head_dim, dtype=dtype)
    selected = torch.stack([torch.randperm(12 * BLOCK_SIZE)[:24] for _ in range(5)])
    selected[0, 1:] = -1
    selected[2, ::3] = -1
    tokens, wide = (LatentTokens(x, x.new_empty(5, shape.entry_dim)) for x in (q, q.float()))
    expected = reference()["sparse_mla_attention"](
        wide, shape, LinearWeight(up.data.float()), clean, selected
    )
    out = ops["sparse_mla_attention"](tokens, shape, up, cache, selected)
    agree(out, expected, BFLOAT16, dtype)
    selected[3:] = -1
    out = ops["sparse_mla_attention"](tokens, shape, up, cache, selected)
    assert not out[3:].any(), "what selects nothing attends to nothing"


def latent_attention(ops: Ops) -> None:
    shape, dtype, table = LATENT, torch.bfloat16, torch.rand(64, LATENT.rope_dim)
    weight = draw(shape.kv_rank, dtype=dtype)
    up = LinearWeight(draw(shape.num_heads * 256, shape.kv_rank, dtype=dtype, scale=0.03))
    cache = LatentCache(torch.zeros(12, BLOCK_SIZE, shape.entry_dim, dtype=dtype))
    clean = LatentCache(torch.zeros(12, BLOCK_SIZE, shape.entry_dim))
    width = shape.num_heads * shape.head_dim
    for rows in STEPS:
        positions, step = step_of(rows)
        both = draw(len(positions), width + shape.entry_dim, dtype=dtype)
        results = []
        for kind, own, kept, matrix in (
            (dtype, ops, cache, up),
            (torch.float32, reference(), clean, LinearWeight(up.data.float())),
        ):
            own_both = both.clone().to(kind)
            q, entries = own_both[:, :width], own_both[:, width:]
            tokens = LatentTokens(q.view(len(q), shape.num_heads, shape.head_dim), entries)
            rotary = Rotary(table, positions, None, NormWeight(weight.to(kind), EPSILON))
            tokens = own["mla_rope_store"](tokens, shape, rotary, kept, step.slot_mapping)
            out = own["mla_attention"](tokens, shape, matrix, kept, step)
            results.append((tokens.q, tokens.entries, out))
        for out, expected in zip(*results, strict=True):
            agree(out, expected, BFLOAT16, dtype)
    _, step = step_of((Row(0, 21, 1),), padding=2)
    tokens = LatentTokens(
        draw(3, shape.num_heads, shape.head_dim, dtype=dtype), draw(3, shape.entry_dim, dtype=dtype)
    )
    out = ops["mla_attention"](tokens, shape, up, cache, step)
    assert not out[1:].any(), "padding attends to nothing"
