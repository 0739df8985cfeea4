"""Expert load balancing: pure decisions about slots, loads and moves.

A slot holds one expert; slots are numbered over all ranks, equally many on each. A placement gives
the expert of each slot. The most loaded experts get the redundant slots (as in DeepSeek's EPLB,
https://github.com/deepseek-ai/EPLB, without its hierarchy of nodes); then copies are assigned to
ranks by load, largest first. An expert that can keep its slot does. Knows no tensors;
expert_mover.py carries out the moves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Placement = tuple[int, ...]

# A placement that is better by less than this share of the load stays as it is.
_WORTHWHILE = 0.02


@dataclass(frozen=True, slots=True)
class ExpertLoad:
    """Tokens of the last window, summed over layers: of the mean rank and of the one with the most;
    moves: slots whose expert changed, since the start."""

    mean: int = 0
    most: int = 0
    moves: int = 0


def first_placement(experts: int, redundant: int) -> Placement:
    """Place all experts in turn, then the first ones again."""
    return tuple(slot % experts for slot in range(experts + redundant))


def balance(load: NDArray[np.int64], placement: Placement, ranks: int) -> float:
    """Return the mean of the ranks' loads divided by the largest: 1 if they are equal. load [E]:
    tokens that chose each expert, whose copies share them."""
    loads = rank_loads(load, placement, ranks)
    largest = float(loads.max())
    return float(loads.mean()) / largest if largest else 1.0


def rank_loads(load: NDArray[np.int64], placement: Placement, ranks: int) -> NDArray[np.float64]:
    """Sum the load [ranks] of each rank's slots."""
    held = np.array(placement)
    copies = np.bincount(held, minlength=len(load))
    by_slot: NDArray[np.float64] = load[held] / copies[held]
    return by_slot.reshape(ranks, -1).sum(axis=1)


def rebalanced(load: NDArray[np.int64], placement: Placement, ranks: int) -> Placement:
    """Return a placement that balances this load; the same placement if none is worth the moves."""
    copies = _copies(load, len(placement) - len(load), ranks)
    packed = _packed(load, copies, ranks, len(placement) // ranks)
    if packed is None:
        return placement
    found = _with_least_moves(placement, packed, ranks)
    gain = balance(load, found, ranks) - balance(load, placement, ranks)
    return found if gain > _WORTHWHILE else placement


def sources(old: Placement, new: Placement, ranks: int) -> dict[int, int]:
    """Find for each slot whose expert changes the slot that has it before: of the same rank where
    there is one."""
    each = len(old) // ranks
    found: dict[int, int] = {}
    for slot, (before, expert) in enumerate(zip(old, new, strict=True)):
        if before != expert:
            having = [other for other, held in enumerate(old) if held == expert]
            found[slot] = min(having, key=lambda other: (other // each != slot // each, other))
    return found


def _copies(load: NDArray[np.int64], redundant: int, ranks: int) -> NDArray[np.int64]:
    """Return how many copies each expert gets: repeatedly one more for the expert with the highest
    load per copy. More copies than ranks are useless."""
    copies = np.ones(len(load), dtype=np.int64)
    for _ in range(redundant):
        each = np.where(copies < ranks, load / copies, -1.0)
        copies[int(each.argmax())] += 1
    return copies


def _packed(
    load: NDArray[np.int64], copies: NDArray[np.int64], ranks: int, slots: int
) -> list[set[int]] | None:
    """Assign experts to ranks: an expert's copies go to as many ranks, the most loaded copies
    first, each to the rank with the least load that has room for it. Return None if a copy finds no
    rank."""
    each = load / copies
    held: list[set[int]] = [set() for _ in range(ranks)]
    loads = [0.0] * ranks
    # Experts with the most copies first: a later one may find no rank without a copy.
    for expert in sorted(range(len(load)), key=lambda e: (-copies[e], -each[e], e)):
        for _ in range(int(copies[expert])):
            having = [r for r in range(ranks) if len(held[r]) < slots and expert not in held[r]]
            if not having:
                return None
            rank = min(having, key=lambda r: (loads[r], len(held[r]), r))
            held[rank].add(expert)
            loads[rank] += float(each[expert])
    return held


def _with_least_moves(old: Placement, packed: list[set[int]], ranks: int) -> Placement:
    """Assign the packed sets to the ranks that have the most of their experts already, and keep
    each expert that stays in its slot."""
    slots = len(old) // ranks
    now = [old[rank * slots : (rank + 1) * slots] for rank in range(ranks)]
    pairs = sorted(
        ((rank, number) for rank in range(ranks) for number in range(ranks)),
        key=lambda pair: -len(packed[pair[1]].intersection(now[pair[0]])),
    )
    taken: dict[int, int] = {}
    for rank, number in pairs:
        if rank not in taken and number not in taken.values():
            taken[rank] = number
    placement: list[int] = []
    for rank in range(ranks):
        placement += _kept_in_place(now[rank], packed[taken[rank]])
    return tuple(placement)


def _kept_in_place(now: Sequence[int], wanted: set[int]) -> list[int]:
    left = set(wanted)
    kept: list[int | None] = []
    for expert in now:
        stays = expert in left
        left.discard(expert)
        kept.append(expert if stays else None)
    coming = iter(sorted(left))
    return [next(coming) if expert is None else expert for expert in kept]
