"""PullPlan: which blocks of a prompt a consumer asks for, and where their pages go.

Pure functions over a prefix match: in a group that sees everything the blocks behind the cached
prefix, in a group with a window those of them that the first computed token sees.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from atom.model_engine.block_manager import PrefixMatch
from atom.model_engine.kv_transfer.frames import HASH_BYTES, Run
from atom.sizing.cache_groups import CacheGroup


@dataclass(frozen=True, slots=True)
class PullPlan:
    """Describe the blocks to fetch: of each group the indices from `firsts[group]` to `end`."""

    firsts: tuple[int, ...]
    end: int

    @property
    def num_blocks(self) -> int:
        """Count the blocks of all groups."""
        return sum(self.end - first for first in self.firsts)

    def runs(self, hashes: bytes) -> list[Run]:
        """Return the runs to ask for. hashes: of every block from the prompt's first on."""
        return [
            Run(group, first, hashes[first * HASH_BYTES : self.end * HASH_BYTES])
            for group, first in enumerate(self.firsts)
            if first < self.end
        ]

    def places(self) -> list[tuple[int, int]]:
        """Return the group and the index of each page, in the order of the runs."""
        return [
            (group, index)
            for group, first in enumerate(self.firsts)
            for index in range(first, self.end)
        ]


def plan_pull(
    groups: Sequence[CacheGroup], match: PrefixMatch, end: int, block_size: int
) -> PullPlan:
    """Plan the pages behind a cached prefix, up to the block `end`."""
    return PullPlan(
        tuple(
            max(match.num_blocks, end - group.matched_blocks(end, block_size)) for group in groups
        ),
        end,
    )
