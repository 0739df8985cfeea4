"""TierSearch: the longest prefix whose blocks are on the device, in the host's memory or in files.

As PrefixSearch, but over all places: a group of full attention needs every block of the prefix, a
group with a window only the blocks that the next token sees, and where layers keep states the
prefix ends at a checkpoint. A prefix is found only as far as it is whole. It changes nothing.
Called by KVTiers for a request whose prefix is not all on the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Protocol

import xxhash

from atom.model_engine.blocks.block_pool import BlockPool
from atom.model_engine.blocks.host_pages import HostPages
from atom.model_engine.blocks.state_checkpoints import StateCheckpoints
from atom.sizing.cache_groups import CacheGroup


class Files(Protocol):
    """The pages in files. Both functions return the name of a page that is there."""

    def find(self, hash_: int, parent: int, packed: bytes, adapter: bytes) -> bytes | None:
        """Find the page of a block. adapter: the digest of its adapter, as `PageNames` has it."""
        ...

    def find_state(self, hash_: int, parent: int, packed: bytes, adapter: bytes) -> bytes | None:
        """Find the checkpoint of states at a block's end."""
        ...


@dataclass(frozen=True, slots=True)
class Caches:
    """The caches to search. states: the host's checkpoints, if layers keep states; files: None
    without a tier on a disk."""

    pool: BlockPool
    pages: HostPages
    checkpoints: StateCheckpoints | None
    states: HostPages | None
    files: Files | None = None


@dataclass(frozen=True, slots=True)
class Missing:
    """A block of the prefix that the device lacks: its group, its index in the sequence, and the
    place of its page, or the name of its file."""

    group: int
    index: int
    place: int
    name: bytes | None = None


@dataclass(frozen=True, slots=True)
class StateAt:
    """The checkpoint at the end of a prefix: its place in the host's memory, or the name of its
    file."""

    place: int
    name: bytes | None = None


@dataclass(frozen=True, slots=True)
class TierMatch:
    """The longest whole prefix. hashes: the chain before each of its blocks and after the last;
    tokens: of each block, packed; blocks: those on the device that it needs; missing: those that
    are read, by index; state: the checkpoint at its end, if that is read."""

    hashes: list[int]
    tokens: list[bytes]
    blocks: list[tuple[int, int]]  # index, block
    missing: list[Missing]
    state: StateAt | None

    @property
    def num_blocks(self) -> int:
        return len(self.hashes) - 1

    @property
    def reads_files(self) -> bool:
        """Return whether a part of it is in files."""
        if self.state is not None and self.state.name is not None:
            return True
        return any(each.name is not None for each in self.missing)

    def blocks_of_files(self, first: int) -> int:
        """Return how many blocks of tokens from an index on have a page in a file."""
        found = {each.index for each in self.missing if each.name is not None}
        return sum(index >= first for index in found)


_ABSENT = -1
_DEVICE = StateAt(_ABSENT)  # a checkpoint that is not read


class TierSearch:
    def __init__(
        self,
        caches: Caches,
        groups: Sequence[CacheGroup],
        marks: Sequence[int],
        block_size: int,
    ) -> None:
        """marks: the difference of each group's hashes from the chain."""
        self._caches = caches
        self._groups, self._marks = groups, marks
        self._size = block_size
        self._blocks_of = Struct(f"{4 * block_size}s").iter_unpack
        self._windows = [number for number, group in enumerate(groups) if group.window is not None]
        self._adapter: bytes | None = None  # of this search; None: files are not searched
        self._names: list[bytes] = []  # of files that this search found

    def look(self, adapter: bytes | None) -> None:
        """Begin a search. adapter: the digest of the sequence's adapter; None to search no
        files."""
        self._adapter = None if self._caches.files is None else adapter

    def goes_on(self, block_tokens: bytes, chain: int) -> bool:
        """Tell whether a prefix may go on by a block: each group that sees everything has it.
        chain: the hash before the block."""
        after = xxhash.xxh64_intdigest(block_tokens, chain)
        return not any(
            group.window is None and self._find(after ^ mark, chain ^ mark, block_tokens) == _ABSENT
            for group, mark in zip(self._groups, self._marks, strict=True)
        )

    def longest(self, packed: bytes, chain: int) -> TierMatch | None:
        """Find the prefix; None if there is none. packed: the tokens that may be matched, as int32;
        chain: the hash before them."""
        hashes, tokens, self._names = [chain], [], []
        # Of each group, by index: a block of the device, or a place of the host from -2 downwards,
        # and below those a number of a file.
        where: list[list[int]] = [[] for _ in self._groups]
        for (block_tokens,) in self._blocks_of(packed):
            after = xxhash.xxh64_intdigest(block_tokens, chain)
            found = [self._find(after ^ mark, chain ^ mark, block_tokens) for mark in self._marks]
            if any(
                at == _ABSENT and group.window is None
                for at, group in zip(found, self._groups, strict=True)
            ):
                break
            for column, at in zip(where, found, strict=True):
                column.append(at)
            chain = after
            hashes.append(chain)
            tokens.append(block_tokens)
        end = self._end(where, len(tokens))
        while end:
            state = self._state(hashes, tokens, where, end)
            if state is not None:
                found_state = None if state is _DEVICE else state
                return self._match(hashes[: end + 1], tokens[:end], where, found_state)
            end = self._end(where, end - 1)
        return None

    def _find(self, hash_: int, parent: int, packed: bytes) -> int:
        block = self._caches.pool.find_proven(hash_, parent, packed)
        if block is not None:
            return block
        place = self._caches.pages.find(hash_, parent, packed)
        if place is not None:
            return -2 - place
        if self._adapter is not None:
            assert self._caches.files is not None
            name = self._caches.files.find(hash_, parent, packed, self._adapter)
            if name is not None:
                self._names.append(name)
                return self._first_file - len(self._names)
        return _ABSENT

    @property
    def _first_file(self) -> int:
        return -1 - self._caches.pages.num_places

    def _end(self, where: Sequence[Sequence[int]], most: int) -> int:
        """Return the longest prefix of at most `most` blocks whose end every group with a window
        has."""
        end, index = most, most
        while index > 0 and end:
            index -= 1
            needed = [
                number
                for number in self._windows
                if index >= end - self._groups[number].matched_blocks(end, self._size)
            ]
            if not needed:
                break
            if any(where[number][index] == _ABSENT for number in needed):
                end = index
        return end

    def _state(
        self, hashes: Sequence[int], tokens: Sequence[bytes], where: list[list[int]], end: int
    ) -> StateAt | None:
        """Return the checkpoint at the end of a prefix; `_DEVICE` if it need not be read, and None
        if there is none."""
        checkpoints, states = self._caches.checkpoints, self._caches.states
        if checkpoints is None or states is None:
            return _DEVICE
        if end % checkpoints.interval_blocks:
            return None
        block = where[0][end - 1]
        if block >= 0 and checkpoints.place_of(block) is not None:
            return _DEVICE
        block_name = hashes[end], hashes[end - 1], tokens[end - 1]
        place = states.find(*block_name)
        if place is not None:
            return StateAt(place)
        if self._adapter is None or self._caches.files is None:
            return None
        name = self._caches.files.find_state(*block_name, self._adapter)
        return None if name is None else StateAt(_ABSENT, name)

    def _match(
        self,
        hashes: list[int],
        tokens: list[bytes],
        where: Sequence[Sequence[int]],
        state: StateAt | None,
    ) -> TierMatch:
        end, first_file = len(hashes) - 1, self._first_file
        blocks, missing = [], []
        for number, group in enumerate(self._groups):
            for index in range(end - group.matched_blocks(end, self._size), end):
                at = where[number][index]
                if at >= 0:
                    blocks.append((index, at))
                elif at >= first_file:
                    missing.append(Missing(number, index, -2 - at))
                else:
                    name = self._names[first_file - at - 1]
                    missing.append(Missing(number, index, _ABSENT, name))
        missing.sort(key=lambda each: each.index)
        return TierMatch(hashes, tokens, blocks, missing, state)
