# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""The pairs of a token and an expert that belong to an expert: searched for, or sorted.

The order is a counting sort, stable and without atomics: a program per expert counts its pairs and
those of experts before it, then goes through them again and writes each to its place. Pairs of many
tokens are divided in parts among several programs of an expert; an earlier launch counts the parts.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from atom.model_ops.backends.triton_ops.launch import next_power_of_2

CHUNK = 1024  # ids that a program looks at at a time
_PART = 8192  # pairs of a part


@triton.jit
def pairs_of_expert(
    chosen_ptr, expert, first, count, BLOCK_M: tl.constexpr, SEARCH: tl.constexpr
):  # fmt: skip
    """Find the pairs that chose the expert, from number `first` on, [M], and their number in all.
    Values after the last pair are meaningless."""
    lane = tl.arange(0, BLOCK_M)
    pairs = tl.zeros([BLOCK_M], tl.int32)
    before = 0
    for start in range(0, count, SEARCH):
        at = start + tl.arange(0, SEARCH)
        own = (tl.load(chosen_ptr + at, mask=at < count, other=-1) == expert).to(tl.int32)
        # A scan instead of atomics: pairs stay in order, and the sum of a token is the same each
        # time.
        number = before + tl.cumsum(own, axis=0) - 1 - first
        here = (own == 1)[None, :] & (number[None, :] == lane[:, None])
        # At most one candidate for each place: the sum is a selection without a scatter.
        pairs += tl.sum(tl.where(here, at[None, :], 0), axis=1)
        before += tl.sum(own, axis=0)
    return pairs, before


@triton.jit
def tile_of_order(
    counts_ptr, tile, EXPERTS: tl.constexpr, EXPERTS_PADDED: tl.constexpr, BLOCK_M: tl.constexpr
):  # fmt: skip
    """Find a tile's expert, the begin of its pairs in the order, and the end of the expert's pairs;
    for a tile after the last one, an expert out of range."""
    number = tl.arange(0, EXPERTS_PADDED)
    counts = tl.load(counts_ptr + number, mask=number < EXPERTS, other=0)
    tiles = (counts + BLOCK_M - 1) // BLOCK_M
    # Every program counts again from E numbers: cheaper than another launch that writes tiles down.
    ends = tl.cumsum(tiles, axis=0)
    # An expert without pairs has no tile, so its end equals the one before and is passed as well.
    passed = ends <= tile
    expert = tl.sum((passed & (number < EXPERTS)).to(tl.int32), axis=0)
    begin = tl.sum(tl.where(number < expert, counts, 0), axis=0)
    end = begin + tl.sum(tl.where(number == expert, counts, 0), axis=0)
    within = tile - tl.sum(tl.where(number < expert, tiles, 0), axis=0)
    return expert, begin + within * BLOCK_M, end


@triton.jit
def _place_expert(
    chosen_ptr, order_ptr, expert, next_place, first, end, CHUNK: tl.constexpr
):  # fmt: skip
    """Write an expert's pairs among those from `first` to `end`, from the next place on."""
    for start in range(first, end, CHUNK):
        at = start + tl.arange(0, CHUNK)
        own = (tl.load(chosen_ptr + at, mask=at < end, other=-1) == expert).to(tl.int32)
        tl.store(order_ptr + next_place + tl.cumsum(own, axis=0) - 1, at, mask=own == 1)
        next_place += tl.sum(own, axis=0)


@triton.jit
def order_expert(chosen_ptr, counts_ptr, order_ptr, expert, pairs, CHUNK: tl.constexpr):
    """Count one expert's pairs and write each to its place."""
    before = tl.zeros([CHUNK], tl.int32)
    found = before
    # Ids are some KB and in L2: each expert's program may read all of them.
    for start in range(0, pairs, CHUNK):
        at = start + tl.arange(0, CHUNK)
        chosen = tl.load(chosen_ptr + at, mask=at < pairs, other=-1)
        before += ((chosen >= 0) & (chosen < expert)).to(tl.int32)  # below 0: another rank's
        found += (chosen == expert).to(tl.int32)
    tl.store(counts_ptr + expert, tl.sum(found, axis=0))
    _place_expert(chosen_ptr, order_ptr, expert, tl.sum(before, axis=0), 0, pairs, CHUNK)


@triton.jit(do_not_specialize=["pairs"])
def _order_kernel(chosen_ptr, counts_ptr, order_ptr, pairs, CHUNK: tl.constexpr):
    order_expert(chosen_ptr, counts_ptr, order_ptr, tl.program_id(0), pairs, CHUNK)


@triton.jit(do_not_specialize=["pairs"])
def _count_parts_kernel(
    chosen_ptr, parts_ptr, pairs, PART: tl.constexpr, CHUNK: tl.constexpr
):  # fmt: skip
    """parts [parts, E]: an expert's pairs among a part's."""
    expert, part = tl.program_id(0), tl.program_id(1)
    found = tl.zeros([CHUNK], tl.int32)
    # Sums stay in lanes until the end: one reduction a program.
    for start in range(part * PART, tl.minimum((part + 1) * PART, pairs), CHUNK):
        at = start + tl.arange(0, CHUNK)
        found += (tl.load(chosen_ptr + at, mask=at < pairs, other=-1) == expert).to(tl.int32)
    tl.store(parts_ptr + part * tl.num_programs(0) + expert, tl.sum(found, axis=0))


@triton.jit(do_not_specialize=["pairs"])
def _order_parts_kernel(
    chosen_ptr, parts_ptr, counts_ptr, order_ptr, pairs,
    EXPERTS: tl.constexpr, EXPERTS_PADDED: tl.constexpr, PART: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    expert, part = tl.program_id(0), tl.program_id(1)
    number = tl.arange(0, EXPERTS_PADDED)
    before = tl.zeros([EXPERTS_PADDED], tl.int32)
    found = before
    # Where this part's pairs begin: behind all of lower experts, and behind the expert's own of
    # lower parts.
    for other in range(tl.num_programs(1)):
        counts = tl.load(parts_ptr + other * EXPERTS + number, mask=number < EXPERTS, other=0)
        is_before = (number < expert) | ((number == expert) & (other < part))
        before += tl.where(is_before, counts, 0)
        found += tl.where(number == expert, counts, 0)
    if part == 0:
        tl.store(counts_ptr + expert, tl.sum(found, axis=0))
    end = tl.minimum((part + 1) * PART, pairs)
    next_place = tl.sum(before, axis=0)
    _place_expert(chosen_ptr, order_ptr, expert, next_place, part * PART, end, CHUNK)


@dataclass(frozen=True, slots=True)
class Order:
    """pairs [P] int32, by expert; counts [E] int32, how many each expert has."""

    pairs: torch.Tensor
    counts: torch.Tensor


def empty_order(ids: torch.Tensor, experts: int) -> Order:
    pairs = torch.empty(ids.numel(), dtype=torch.int32, device=ids.device)
    return Order(pairs, torch.empty(experts, dtype=torch.int32, device=ids.device))


def order_by_expert(ids: torch.Tensor, experts: int) -> Order:
    """Sort the pairs of ids [T, k] int32; pair p is choice p % k of token p // k."""
    order, pairs = empty_order(ids, experts), ids.numel()
    if pairs <= _PART:
        _order_kernel[(experts,)](ids, order.counts, order.pairs, pairs, CHUNK=CHUNK, num_warps=4)
        return order
    grid = (experts, triton.cdiv(pairs, _PART))
    parts = torch.empty((grid[1], experts), dtype=torch.int32, device=ids.device)
    _count_parts_kernel[grid](ids, parts, pairs, PART=_PART, CHUNK=CHUNK, num_warps=4)
    _order_parts_kernel[grid](
        ids, parts, order.counts, order.pairs, pairs, EXPERTS=experts,
        EXPERTS_PADDED=next_power_of_2(experts), PART=_PART, CHUNK=CHUNK, num_warps=4,
    )  # fmt: skip
    return order
