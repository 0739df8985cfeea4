"""PullPlan: which blocks of a prompt a consumer asks for, and where their pages go.

Pure functions over a prefix match: in a group that sees everything the blocks behind the cached
prefix, in a group with a window those of them that the first computed token sees. PullRoom tells
if the pool has blocks for them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from atom.model_engine.block_manager import BlockManager, PrefixMatch
from atom.model_engine.kv_transfer.frames import HASH_BYTES, Run

_SPARE = 0.01  # share of the pool that stays free for running rows


@dataclass(frozen=True, slots=True)
class PullRoom:
    """Bound the blocks of prompts whose pages are on their way or wait for their request's
    admission. most_held: of all these prompts, unless there is only one; spare: that stay free for
    running rows."""

    most_held: int
    spare: int

    @classmethod
    def of(cls, num_blocks: int, max_held_fraction: float) -> PullRoom:
        """Return the bounds in a pool of so many blocks."""
        return cls(int(max_held_fraction * num_blocks), int(_SPARE * num_blocks))

    def takes(self, needed: int, *, num_held: int, num_free: int) -> bool:
        """Return whether a prompt that needs so many blocks has room beside those that are held."""
        if num_held and num_held + needed > self.most_held:
            return False
        return needed + self.spare <= num_free


@dataclass(frozen=True, slots=True)
class PullPlan:
    """Describe the blocks to fetch: of each group the indices from `firsts[group]` to `end`; with
    states also their checkpoint at the end, as the last block of one more group."""

    firsts: tuple[int, ...]
    end: int
    with_states: bool = False

    @property
    def num_blocks(self) -> int:
        """Count the blocks of all groups."""
        return sum(self.end - first for first in self.firsts)

    @property
    def num_pages(self) -> int:
        """Count the pages: of the blocks, and of states."""
        return self.num_blocks + self.with_states

    def size_bytes(self, page_bytes: Callable[[int], int]) -> int:
        """Return the bytes of the pages. page_bytes: of a page of a group."""
        return sum(page_bytes(group) for group, _ in self.places())

    def runs(self, hashes: bytes) -> list[Run]:
        """Return the runs to ask for. hashes: of every block from the prompt's first on."""
        return [
            Run(group, first, hashes[first * HASH_BYTES : self.end * HASH_BYTES])
            for group, first in enumerate(self._all_firsts)
            if first < self.end
        ]

    def places(self) -> list[tuple[int, int]]:
        """Return the group and the index of each page, in the order of the runs."""
        return [
            (group, index)
            for group, first in enumerate(self._all_firsts)
            for index in range(first, self.end)
        ]

    @property
    def _all_firsts(self) -> tuple[int, ...]:
        return (*self.firsts, *((self.end - 1,) if self.with_states else ()))


def plan_pull(blocks: BlockManager, match: PrefixMatch, end: int) -> PullPlan:
    """Plan the pages behind a cached prefix, up to the block `end`. A prefix with states ends at
    one of their checkpoints."""
    firsts = [
        max(match.num_blocks, end - group.matched_blocks(end, blocks.block_size))
        for group in blocks.groups
    ]
    is_needed = any(first < end for first in firsts)
    return PullPlan(tuple(firsts), end, is_needed and blocks.checkpoints is not None)
