"""PrefixSearch: the longest cached prefix for groups of layers with different windows.

A group of full attention needs every block of the prefix, a group with a window only the blocks
that the next token sees. If layers keep states, the prefix ends at a checkpoint, which belongs to
the first group's block. Each block's hash is looked up at most once per group. Reads the pool and
changes nothing; called by BlockManager if there is more than one group of full attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

import xxhash

from atom.model_engine.blocks.block_pool import BlockPool
from atom.model_engine.blocks.state_checkpoints import StateCheckpoints
from atom.sizing.cache_groups import CacheGroup


class PrefixSearch:
    def __init__(
        self,
        pool: BlockPool,
        groups: Sequence[CacheGroup],
        marks: Sequence[int],
        block_size: int,
        checkpoints: StateCheckpoints | None = None,
    ) -> None:
        """marks: the difference of each group's hashes from the chain; checkpoints: of states that
        layers keep."""
        self._pool, self._checkpoints = pool, checkpoints
        self._size = block_size
        self._block_bytes = 4 * block_size
        self._blocks_of = Struct(f"{self._block_bytes}s").iter_unpack
        self._groups, self._marks = groups, marks
        self._full = [number for number, group in enumerate(groups) if group.window is None]
        self._windows = [number for number, group in enumerate(groups) if group.window is not None]

    def longest(self, packed: bytes, chain: int) -> tuple[list[int], list[list[int]]]:
        """Return the hashes before the prefix's blocks and after its last, and of each group the
        last of its blocks, as many as are needed. packed: the tokens that may be matched, as int32;
        chain: the hash before them."""
        hashes, found = self._full_prefix(packed, chain)
        block_ids: list[list[int]] = [[] for _ in self._groups]
        end = len(hashes) - 1
        while True:
            end, tails = self._window_tails(hashes, self._last_state(hashes, end))
            if end != self._last_state(hashes, end):
                continue
            for number, tail in zip(self._windows, tails, strict=True):
                block_ids[number] = tail
            proven = min(
                (self._proven(n, block_ids[n], hashes, end, packed) for n in self._windows),
                default=end,
            )
            if proven == end:
                break
            end = proven
        for number, ids in zip(self._full, found, strict=True):
            block_ids[number] = ids[:end]
        return hashes[: end + 1], block_ids

    def _full_prefix(self, packed: bytes, chain: int) -> tuple[list[int], list[list[int]]]:
        """Return the chain as far as all groups that see everything have its blocks, and these."""
        digest, find = xxhash.xxh64_intdigest, self._pool.find
        marks = [self._marks[number] for number in self._full]
        found: list[list[int]] = [[] for _ in marks]
        hashes = [chain]
        for (block_tokens,) in self._blocks_of(packed):
            chain = digest(block_tokens, chain)
            ids = [block for mark in marks if (block := find(chain ^ mark)) is not None]
            if len(ids) < len(marks):
                break
            for table, block in zip(found, ids, strict=True):
                table.append(block)
            hashes.append(chain)
        end = len(hashes) - 1
        for number, ids in zip(self._full, found, strict=True):
            end = min(end, self._proven(number, ids[:end], hashes, end, packed))
        return hashes[: end + 1], found

    def _last_state(self, hashes: list[int], end: int) -> int:
        """Return how many of at most `end` blocks are before the last checkpoint among them."""
        if self._checkpoints is None:
            return end
        every, find = self._checkpoints.step_blocks, self._pool.find
        for last in range(end // every * every, 0, -every):
            block = find(hashes[last] ^ self._marks[0])
            if block is not None and self._checkpoints.place_of(block) is not None:
                return last
        return 0

    def _window_tails(self, hashes: list[int], end: int) -> tuple[int, list[list[int]]]:
        """Return the longest prefix of at most `end` blocks whose end every group with a window
        has, and the blocks that each of them needs."""
        find = self._pool.find
        marks = [self._marks[number] for number in self._windows]
        tails: list[list[int]] = [[] for _ in marks]
        needs = self._needs(end)
        index = end
        while any(len(tail) < need for tail, need in zip(tails, needs, strict=True)):
            index -= 1
            for tail, need, mark in zip(tails, needs, marks, strict=True):
                if len(tail) == need:
                    continue
                block = find(hashes[index + 1] ^ mark)
                if block is None:  # the prefix can only end before this block
                    end, needs = index, self._needs(index)
                    tails = [[] for _ in marks]
                    break
                tail.append(block)
        for tail in tails:
            tail.reverse()
        return end, tails

    def _needs(self, blocks: int) -> list[int]:
        return [self._groups[number].matched_blocks(blocks, self._size) for number in self._windows]

    def _proven(
        self, number: int, block_ids: list[int], hashes: list[int], end: int, packed: bytes
    ) -> int:
        """Return up to which block the group's blocks, which end at `end`, match their hashes."""
        mark, first = self._marks[number], end - len(block_ids)
        parents = [hash_ ^ mark for hash_ in hashes[first:end]]
        return first + self._pool.count_proven(
            block_ids, parents, packed[first * self._block_bytes :]
        )
