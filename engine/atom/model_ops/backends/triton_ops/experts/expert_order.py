# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Which pairs of a token and an expert belong to an expert: searched for, or put in order.

The order is a counting sort of one launch, stable and without atomics: a program per expert counts
its pairs and those of experts before it, then goes through them again and writes each to its place.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

STRETCH = 1024  # ids that a program looks at at a time


@triton.jit
def pairs_of_expert(
    chosen_ptr, expert, first, count, BLOCK_M: tl.constexpr, SEARCH: tl.constexpr
):  # fmt: skip
    """Of the pairs that chose the expert those from number `first` on, [M], and how many there are
    in all. What stands behind the last is no pair."""
    lane = tl.arange(0, BLOCK_M)
    pairs = tl.zeros([BLOCK_M], tl.int32)
    before = 0
    for start in range(0, count, SEARCH):
        at = start + tl.arange(0, SEARCH)
        own = (tl.load(chosen_ptr + at, mask=at < count, other=-1) == expert).to(tl.int32)
        number = before + tl.cumsum(own, axis=0) - 1 - first
        here = (own == 1)[None, :] & (number[None, :] == lane[:, None])
        pairs += tl.sum(tl.where(here, at[None, :], 0), axis=1)
        before += tl.sum(own, axis=0)
    return pairs, before


@triton.jit
def tile_of_order(
    counts_ptr, tile, EXPERTS: tl.constexpr, EXPERTS_PADDED: tl.constexpr, BLOCK_M: tl.constexpr
):  # fmt: skip
    """A tile's expert, where in the order its pairs begin, and where the expert's end; an expert
    that is none behind the last tile."""
    number = tl.arange(0, EXPERTS_PADDED)
    counts = tl.load(counts_ptr + number, mask=number < EXPERTS, other=0)
    tiles = (counts + BLOCK_M - 1) // BLOCK_M
    ends = tl.cumsum(tiles, axis=0)
    passed = ends <= tile
    expert = tl.sum((passed & (number < EXPERTS)).to(tl.int32), axis=0)
    begin = tl.sum(tl.where(number < expert, counts, 0), axis=0)
    end = begin + tl.sum(tl.where(number == expert, counts, 0), axis=0)
    within = tile - tl.sum(tl.where(number < expert, tiles, 0), axis=0)
    return expert, begin + within * BLOCK_M, end


@triton.jit
def order_expert(chosen_ptr, counts_ptr, order_ptr, expert, pairs, STRETCH: tl.constexpr):
    """Count one expert's pairs and write each to its place."""
    before = tl.zeros([STRETCH], tl.int32)
    found = before
    for start in range(0, pairs, STRETCH):
        at = start + tl.arange(0, STRETCH)
        chosen = tl.load(chosen_ptr + at, mask=at < pairs, other=-1)
        before += ((chosen >= 0) & (chosen < expert)).to(tl.int32)  # below 0: another rank's
        found += (chosen == expert).to(tl.int32)
    tl.store(counts_ptr + expert, tl.sum(found, axis=0))
    next_place = tl.sum(before, axis=0)
    for start in range(0, pairs, STRETCH):
        at = start + tl.arange(0, STRETCH)
        own = (tl.load(chosen_ptr + at, mask=at < pairs, other=-1) == expert).to(tl.int32)
        tl.store(order_ptr + next_place + tl.cumsum(own, axis=0) - 1, at, mask=own == 1)
        next_place += tl.sum(own, axis=0)


@triton.jit(do_not_specialize=["pairs"])
def _order_kernel(chosen_ptr, counts_ptr, order_ptr, pairs, STRETCH: tl.constexpr):
    order_expert(chosen_ptr, counts_ptr, order_ptr, tl.program_id(0), pairs, STRETCH)


@dataclass(frozen=True, slots=True)
class Order:
    """pairs [P] int32, by expert; counts [E] int32, how many each expert has."""

    pairs: torch.Tensor
    counts: torch.Tensor


def empty_order(ids: torch.Tensor, experts: int) -> Order:
    pairs = torch.empty(ids.numel(), dtype=torch.int32, device=ids.device)
    return Order(pairs, torch.empty(experts, dtype=torch.int32, device=ids.device))


def order_by_expert(ids: torch.Tensor, experts: int) -> Order:
    """ids [T, k] int32; pair p is choice p % k of token p // k."""
    order = empty_order(ids, experts)
    _order_kernel[(experts,)](
        ids, order.counts, order.pairs, ids.numel(), STRETCH=STRETCH, num_warps=4
    )
    return order
