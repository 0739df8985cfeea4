# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Split-KV (Flash-Decoding, Dao et al. 2023): one row's context divided among programs.

The host chooses the number of a step's splits from sizes alone; the device computes the length of a
row's splits from its context, so a captured graph stays valid as contexts grow. A second kernel
combines the parts, weighted by their sums of exponentials: a semaphore and a last program that
combines was slower (docs/kernels/attention.md). Decode, verify and MLA decode share this.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from atom.model_ops.backends.triton_ops.attention.paged_tiles import (
    add_sinks,
    first_seen,
    head_elements,
    load_sinks,
    mask_constants,
    real_elements,
)
from atom.model_ops.backends.triton_ops.compile.tuning import DecodeConfig
from atom.model_ops.backends.triton_ops.launch import head_lanes, next_power_of_2
from atom.sizing.mask_rule import CAUSAL, MaskRule

# Programs per multiprocessor that keep the memory busy without splitting anything.
_ENOUGH_PROGRAMS = 3
# Where they do, and a row may still outlast the rest: how many splits, and no shorter than what.
_LONG_ROW_SPLITS = 16
_LONG_CONTEXT = 1024
# Splits that a program combines, at most; more than any table asks for.
_COMBINED = (8, 16, 64, 1024)


@triton.jit
def split_length(context, least, splits, BLOCK_N: tl.constexpr):
    """Tokens of each of a row's splits: whole tiles, and not fewer than `least`."""
    return tl.cdiv(tl.maximum(tl.cdiv(context, splits), least), BLOCK_N) * BLOCK_N


@triton.jit
def own_split(
    context, split, least, splits, BLOCK_N: tl.constexpr, IS_SPLIT: tl.constexpr,
    WINDOW: tl.constexpr, IN_CHUNKS: tl.constexpr,
):  # fmt: skip
    """Find a program's tokens in its row: (the first token that the row sees, the split's first
    token and end, tokens of a split)."""
    low = 0
    # Splits divide the tokens that the row sees, not all its tokens.
    if WINDOW:
        low = first_seen(context, WINDOW, IN_CHUNKS)
    if IS_SPLIT:
        length = split_length(context - low, least, splits, BLOCK_N)
        start = low + split * length
        end = tl.minimum(start + length, context)
    else:
        start, end, length = low, context, context
    return low, start, end, length


@triton.jit
def store_split(
    out_ptr, partial_ptr, lse_ptr, sinks_ptr, query_head, head, visible, split, length, splits,
    running_max, running_sum, acc, GROUP: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Write a program's result for the query heads [M] of its group: the row's own if it has one
    split, else a part and the base-2 logarithm of its sum. visible: tokens that the row sees."""
    GROUP_PADDED: tl.constexpr = acc.shape[0]
    LANES: tl.constexpr = acc.shape[1]
    member, element = tl.arange(0, GROUP_PADDED), head_elements(D, LANES)
    stored = (member < GROUP)[:, None]
    if D != LANES:
        stored = stored & real_elements(D, LANES)[None, :]
    if sinks_ptr is not None:
        sinks = load_sinks(sinks_ptr, head * GROUP + member, member < GROUP)
        # For a split row they count once, when its splits are combined.
        sinks = tl.where(visible <= length, sinks, float("-inf"))
        running_max, running_sum, acc = add_sinks(sinks, running_max, running_sum, acc)
    # Padding rows have seen no token: 0 / 1, the zeros that the contract requires, and no NaN.
    total = tl.where(running_sum > 0, running_sum, 1.0)
    result = acc / total[:, None]
    if visible <= length:
        out_at = out_ptr + query_head[:, None] * D + element[None, :]
        tl.store(out_at, result.to(out_ptr.dtype.element_ty), mask=stored)
    else:
        # Parts stay in float32: rounding each split to the model's dtype would add up.
        at = query_head * splits + split
        tl.store(partial_ptr + at[:, None] * D + element[None, :], result, mask=stored)
        tl.store(lse_ptr + at, running_max + tl.log2(total), mask=member < GROUP)


@triton.jit
def weigh_parts(
    partial_ptr, lse_ptr, sinks_ptr, at, written, head,
    HQ: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """One row's and head's attention [LANES] of its parts `at`, those `written`, weighed by their
    sums of exponentials."""
    lse = tl.load(lse_ptr + at, mask=written, other=float("-inf"))
    element = tl.arange(0, head_lanes(D))
    within = element < D
    partial = tl.load(
        partial_ptr + at[:, None] * D + element[None, :],
        mask=written[:, None] & within[None, :], other=0.0,
    )  # fmt: skip
    # Parts that saw nothing have -inf and weigh 0; the highest is finite, since one part saw the
    # newest token.
    highest = tl.max(lse, axis=0)
    total = 0.0
    if sinks_ptr is not None:
        sink = load_sinks(sinks_ptr, head, head < HQ)
        highest = tl.maximum(highest, sink)
        total = tl.exp2(sink - highest)
    weight = tl.exp2(lse - highest)
    total += tl.sum(weight, axis=0)
    return tl.sum(weight[:, None] * partial, axis=0) / total


@triton.jit(do_not_specialize=["least", "splits"])
def _combine_kernel(
    partial_ptr, lse_ptr, contexts_ptr, out_ptr, sinks_ptr, least, splits,
    HQ: tl.constexpr, D: tl.constexpr, BLOCK_N: tl.constexpr, WINDOW: tl.constexpr,
    IN_CHUNKS: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """Weigh the splits of one row and head."""
    row, head = tl.program_id(0), tl.program_id(1)
    context = tl.load(contexts_ptr + row)
    if IN_CHUNKS:
        context -= first_seen(context, WINDOW, True)
    elif WINDOW:
        context = tl.minimum(context, WINDOW)
    length = split_length(context, least, splits, BLOCK_N)
    # One split: decode has written the row itself.
    if context <= length:
        return
    split = tl.arange(0, PADDED)
    written = (split < splits) & (split * length < context)
    at = (row.to(tl.int64) * HQ + head) * splits + split
    result = weigh_parts(partial_ptr, lse_ptr, sinks_ptr, at, written, head, HQ, D)
    result = result.to(out_ptr.dtype.element_ty)
    element = tl.arange(0, head_lanes(D))
    tl.store(out_ptr + (row.to(tl.int64) * HQ + head) * D + element, result, mask=element < D)


@dataclass(frozen=True, slots=True)
class Splits:
    """count: most splits of a row, a power of two; least: fewest tokens of one. whole: rows are not
    split at all, which takes a kernel that cannot."""

    count: int
    least: int
    whole: bool = False


def choose_splits(
    rows: int, kv_heads: int, max_context: int, units: int, config: DecodeConfig, *, even: bool
) -> Splits:
    """Choose enough splits to fill the card. Rows that fill it by themselves are split only if one
    of them could outlast all others; with `even` none does."""
    programs = rows * kv_heads
    if even and programs >= _ENOUGH_PROGRAMS * units:
        return Splits(1, max_context, whole=True)
    wanted = config.programs_per_unit * units / programs
    if programs >= _ENOUGH_PROGRAMS * units:
        wanted = _LONG_ROW_SPLITS
    count = 1 << max(0, round(math.log2(max(wanted, 1.0))))
    useful = next_power_of_2(math.ceil(max_context / config.block_n))
    count = max(1, min(count, useful, config.max_splits))
    return Splits(count, min(_LONG_CONTEXT, 2 * programs) if count > 1 else max_context)


@dataclass(frozen=True, slots=True)
class SplitParts:
    """The results of the rows' splits: partial [rows · heads · splits, D] with lse, the logarithms
    of their sums. A split is whole tiles of block_n tokens, out of the tokens that the mask
    shows."""

    partial: torch.Tensor
    lse: torch.Tensor
    block_n: int
    mask: MaskRule = CAUSAL
    sinks: torch.Tensor | None = None


def combine_splits(
    parts: SplitParts, contexts: torch.Tensor, out: torch.Tensor, splits: Splits
) -> None:
    """Weigh the parts into out [rows, heads, D]; rows of one split are there already."""
    rows, heads, dim = out.shape
    lanes = head_lanes(dim)
    padded, warps = combining_tile(splits.count, lanes)
    _combine_kernel[(rows, heads)](
        parts.partial, parts.lse, contexts, out, parts.sinks, splits.least, splits.count,
        HQ=heads, D=dim, BLOCK_N=parts.block_n, PADDED=padded,
        **mask_constants(parts.mask), num_warps=warps,
    )  # fmt: skip


def combining_tile(splits: int, lanes: int) -> tuple[int, int]:
    """Return the splits that a program combines, and its warps: of few sizes, so that few kernels
    serve any number of rows."""
    padded = next(size for size in _COMBINED if size >= splits)
    return padded, 2 if padded * lanes <= 4096 else 4 if padded * lanes <= 16384 else 8
