"""BlockPool: the free, shared and cached KV blocks, with every operation O(1) per block.

Knows block ids, reference counts and content hashes; knows no sequences and no tensors. Called by
BlockManager only. A block is in exactly one of three states:
  referenced  reference count ≥ 1 (and perhaps findable by hash: others may share it)
  cached      count 0, content still valid and findable by hash; evicted least recently used first
  empty       count 0, content worthless
A cached block is one block, however many sequences share it. `check_integrity` verifies all of this
and may be called at any moment.

A full block is found by the chain's hash and verified by its content (BlockContents). The state is
kept in flat lists, without an object per block, so the garbage collector has no objects to walk for
a pool of any size.
"""

from __future__ import annotations

from array import array
from collections import Counter, deque
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

# The list of freed blocks is compacted when it is this many times as long as the pool.
_MOST_ENTRIES_PER_BLOCK = 4


class BlockPool:
    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self._ref_counts = [0] * num_blocks
        self._hashes: list[int | None] = [None] * num_blocks  # None: not findable
        self._contents = BlockContents(num_blocks, block_size)
        self._by_hash: dict[int, int] = {}
        # The block that a hash leads to, or None; `count_proven` proves its content.
        self.find: Callable[[int], int | None] = self._by_hash.get
        self._empty = list(range(num_blocks - 1, -1, -1))  # taken from the end: low ids first
        # Blocks in the order in which they were last given back. A block that was taken again stays
        # listed until its entry comes up or the list is mostly such entries; its last entry counts.
        self._given_back: deque[int] = deque()
        self._num_listed = [0] * num_blocks  # entries of a block in `_given_back`
        self._num_cached = 0
        # Told of blocks whose content is forgotten, but for `reset_cache`, and of their hashes,
        # where anything hangs on it.
        self.evicted: Callable[[list[int], list[int]], None] | None = None
        # Told of blocks that become cached, where another tier keeps them.
        self.unused: Callable[[list[int]], None] | None = None

    @property
    def num_free(self) -> int:
        """Return the number of blocks that `allocate` can hand out: empty and cached ones."""
        return len(self._empty) + self._num_cached

    @property
    def num_referenced(self) -> int:
        return self.num_blocks - self.num_free

    @property
    def num_indexed(self) -> int:
        """Return the number of blocks findable by their content."""
        return len(self._by_hash)

    def allocate(self, count: int) -> list[int]:
        """Take `count` blocks with worthless content; the caller has checked `num_free`."""
        empty = self._empty
        if count <= len(empty):
            taken = empty[len(empty) - count :]
            del empty[len(empty) - count :]
            taken.reverse()
        else:
            assert count <= self.num_free, "allocate() beyond num_free"
            taken = empty[::-1]
            empty.clear()
            taken += self._evict(count - len(taken))
        ref_counts = self._ref_counts
        for block_id in taken:
            ref_counts[block_id] = 1
        return taken

    def _evict(self, count: int) -> list[int]:
        take, listed = self._given_back.popleft, self._num_listed
        ref_counts, hashes, by_hash = self._ref_counts, self._hashes, self._by_hash
        evicted: list[int] = []
        gone: list[int] = []  # their hashes
        while len(evicted) < count:
            block_id = take()
            listed[block_id] -= 1
            if listed[block_id] or ref_counts[block_id]:
                continue  # given back again later, or referenced
            content_hash = hashes[block_id]
            assert content_hash is not None
            del by_hash[content_hash]
            hashes[block_id] = None
            gone.append(content_hash)
            evicted.append(block_id)
        self._note_evicted(evicted, gone)
        return evicted

    def _note_evicted(self, block_ids: list[int], hashes: list[int]) -> None:
        self._num_cached -= len(block_ids)
        if self.evicted is not None:
            self.evicted(block_ids, hashes)

    def count_proven(self, block_ids: Sequence[int], parents: Sequence[int], packed: bytes) -> int:
        """Return how many of the blocks that were found, from the first on, hold exactly these
        tokens after exactly this prefix. parents: the hash before each; packed: tokens as int32, of
        these blocks and perhaps more. The others are collisions of 64 bits: misses, never someone
        else's data."""
        return self._contents.count_equal(block_ids, parents, packed) if block_ids else 0

    def hash_of(self, block_id: int) -> int | None:
        """Return the hash that a block is found by; None for a block that is not findable."""
        return self._hashes[block_id]

    def contents(self, block_id: int) -> tuple[int, bytes]:
        """Return the hash before a block and its tokens as int32, as it was last published."""
        return self._contents.get(block_id)

    def find_proven(self, hash_: int, parent: int, packed: bytes) -> int | None:
        """Return the block with this hash that holds exactly these tokens after exactly this
        prefix, or None."""
        block_id = self.find(hash_)
        if block_id is None or self._contents.get(block_id) != (parent, packed):
            return None
        return block_id

    def count_held_once(self, block_ids: Sequence[int]) -> int:
        """Return how many of these referenced blocks have one reference, which frees them when it
        is dropped."""
        ref_counts = self._ref_counts
        return [ref_counts[block_id] for block_id in block_ids].count(1)

    def count_unreferenced(self, block_ids: Sequence[int]) -> int:
        """Return how many of these cached blocks are not referenced, so that sharing them uses up
        free ones."""
        ref_counts = self._ref_counts
        return [ref_counts[block_id] for block_id in block_ids].count(0)

    def share(self, block_ids: Sequence[int]) -> None:
        """Take one more reference to each of these blocks, which a request has found."""
        self.hold(block_ids)

    def hold(self, block_ids: Sequence[int]) -> None:
        """Take one more reference to each of these referenced or cached blocks."""
        ref_counts = self._ref_counts
        self._num_cached -= self.count_unreferenced(block_ids)
        for block_id in block_ids:
            ref_counts[block_id] += 1

    def publish(self, block_id: int, hash_: int, parent: int, packed: bytes) -> bool:
        """Make a referenced block findable, once while it is referenced. A block whose content is
        already findable elsewhere stays anonymous: block tables are append-only, so duplicates are
        not merged. parent: the hash before it; packed: its tokens as int32. Returns whether the
        content was not findable before."""
        assert self._hashes[block_id] is None, f"block {block_id} published twice"
        if self._by_hash.setdefault(hash_, block_id) != block_id:
            return False
        self._hashes[block_id] = hash_
        self._contents.put(block_id, parent, packed)
        return True

    def publish_all(
        self, block_ids: list[int], hashes: list[int], tokens: NDArray[np.int32]
    ) -> Sequence[int]:
        """Publish blocks that follow each other. hashes: the one before the first block, then the
        one after each; tokens [blocks, block_size]. Returns which of them were not findable
        before."""
        own, after = self._hashes, hashes[1:]
        placed = list(map(self._by_hash.setdefault, after, block_ids))
        new: Sequence[int] = range(len(block_ids))
        if placed != block_ids:
            new = [row for row, block_id in enumerate(block_ids) if placed[row] == block_id]
            block_ids, tokens = [block_ids[row] for row in new], tokens[new]
            hashes, after = [hashes[row] for row in new], [after[row] for row in new]
        for block_id, hash_ in zip(block_ids, after, strict=True):
            assert own[block_id] is None, f"block {block_id} published twice"
            own[block_id] = hash_
        self._contents.put_all(block_ids, hashes[: len(block_ids)], tokens)
        return new

    def free(self, block_ids: Sequence[int]) -> None:
        """Drop one reference of each; the last one leaves a cached block findable.

        Freed from the end, so that of one sequence the deepest blocks are evicted first: a prefix
        without its beginning is useless.
        """
        ref_counts, hashes, empty = self._ref_counts, self._hashes, self._empty
        cached = []
        for block_id in reversed(block_ids):
            count = ref_counts[block_id] - 1
            assert count >= 0, f"block {block_id} freed twice"
            ref_counts[block_id] = count
            if count == 0:
                if hashes[block_id] is None:
                    empty.append(block_id)
                else:
                    cached.append(block_id)
        self._num_cached += len(cached)
        self._give_back(cached)
        if cached and self.unused is not None:
            self.unused(cached)

    def _give_back(self, block_ids: list[int]) -> None:
        """Add blocks to those that may be evicted, the newest last."""
        listed = self._num_listed
        for block_id in block_ids:
            listed[block_id] += 1
        self._given_back += block_ids
        if len(self._given_back) > _MOST_ENTRIES_PER_BLOCK * self.num_blocks:
            self._forget_old_entries()

    def _forget_old_entries(self) -> None:
        """Keep the entries that count, one per block: rare enough to be O(1) per entry."""
        newest_first = dict.fromkeys(reversed(self._given_back))
        kept = [block_id for block_id in reversed(newest_first) if self._is_cached(block_id)]
        self._given_back = deque(kept)
        self._num_listed = [0] * self.num_blocks
        for block_id in kept:
            self._num_listed[block_id] = 1

    def _cached_blocks(self) -> set[int]:
        return {block_id for block_id in self._given_back if self._is_cached(block_id)}

    def _is_cached(self, block_id: int) -> bool:
        return self._ref_counts[block_id] == 0 and self._hashes[block_id] is not None

    def forget(self, block_ids: Sequence[int]) -> None:
        """Forget the content of these blocks, if it is findable: cached blocks become empty,
        referenced ones stay referenced. O(pool), for rare events."""
        by_hash, own = self._by_hash, self._hashes
        findable = {
            block_id: hash_ for block_id in block_ids if (hash_ := own[block_id]) is not None
        }
        for block_id, hash_ in findable.items():
            del by_hash[hash_]
            own[block_id] = None
            self._num_listed[block_id] = 0
            if self._ref_counts[block_id] == 0:
                self._empty.append(block_id)
                self._num_cached -= 1
        self._given_back = deque(each for each in self._given_back if each not in findable)
        if findable and self.evicted is not None:
            self.evicted(list(findable), list(findable.values()))

    def reset_cache(self) -> list[int]:
        """Forget all cached content, and return its hashes; referenced blocks stay so but can no
        longer be found."""
        hashes = list(self._by_hash)
        self._empty.extend(b for b in self._by_hash.values() if self._ref_counts[b] == 0)
        for block_id in self._by_hash.values():
            self._hashes[block_id] = None
        self._by_hash.clear()
        self._given_back.clear()
        self._num_listed = [0] * self.num_blocks
        self._num_cached = 0
        return hashes

    def check_integrity(self) -> None:
        """Raise AssertionError if any invariant of the module's docstring is broken. Tests call
        this at every step of pools of thousands of blocks, so checks of all blocks avoid loops."""
        ref_counts, hashes, listed = self._ref_counts, self._hashes, self._num_listed
        empty = set(self._empty)
        cached = self._cached_blocks()
        assert len(cached) == self._num_cached
        entries = Counter(self._given_back)
        assert all(listed[block_id] == count for block_id, count in entries.items())
        assert len(listed) - listed.count(0) == len(entries), "listed, and not given back"
        assert len(empty) == len(self._empty), "an empty block is listed twice"
        assert empty.isdisjoint(cached), "a block is both empty and cached"
        assert len(ref_counts) == len(hashes) == len(listed) == self.num_blocks
        assert min(ref_counts, default=0) >= 0
        unreferenced = {block_id for block_id, count in enumerate(ref_counts) if count == 0}
        assert unreferenced == empty | cached
        assert empty.isdisjoint(self._by_hash.values()), "empty block with content"
        assert all(hashes[block_id] == key for key, block_id in self._by_hash.items())
        assert self.num_blocks - hashes.count(None) == len(self._by_hash)


class BlockContents:
    """Store the contents that each block was published with, to prove that a hash found the right
    one.

    A block's proof is the chain's hash before it and its tokens. Stored as arrays, written and
    compared for many blocks at a time: an object per block would cost a cache miss each to create
    and to free. Knows neither which blocks are findable nor which sequences hold them.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        # Each twice: to be written one by one, and by many at a time, through numpy.
        self._parent_items = array("Q", bytes(8 * num_blocks))
        self._parents = np.frombuffer(self._parent_items, np.uint64)
        self._tokens = np.zeros((num_blocks, block_size), dtype=np.int32)
        self._token_bytes = self._tokens.reshape(-1).data.cast("B")
        self._block_bytes = 4 * block_size

    def put(self, block_id: int, parent: int, packed: bytes) -> None:
        """Store a block's contents: `parent`, the hash before the block, and `packed`, its tokens
        as int32."""
        start = block_id * self._block_bytes
        self._parent_items[block_id] = parent
        self._token_bytes[start : start + self._block_bytes] = packed

    def get(self, block_id: int) -> tuple[int, bytes]:
        """Return the hash before a block and its tokens as int32."""
        start = block_id * self._block_bytes
        return self._parent_items[block_id], bytes(
            self._token_bytes[start : start + self._block_bytes]
        )

    def put_all(
        self, block_ids: Sequence[int], parents: Sequence[int], tokens: NDArray[np.int32]
    ) -> None:
        """Store many blocks at once; tokens [blocks, block_size]."""
        at = np.fromiter(block_ids, np.intp, len(block_ids))
        self._parents[at] = _hashes(parents)
        self._tokens[at] = tokens

    def count_equal(self, block_ids: Sequence[int], parents: Sequence[int], packed: bytes) -> int:
        """Return how many of the blocks hold this, up to the first that does not. packed: tokens as
        int32, of at least these blocks."""
        count = len(block_ids)
        at = np.fromiter(block_ids, np.intp, count)
        own, asked = self._tokens[at], packed[: count * self._block_bytes]
        same = self._parents[at] == _hashes(parents)
        if own.tobytes() != asked:
            same &= (own == np.frombuffer(asked, np.int32).reshape(own.shape)).all(axis=1)
        return count if same.all() else int(same.argmin())


def _hashes(numbers: Sequence[int]) -> NDArray[np.uint64]:
    """Make an array of hashes; numpy itself is slow to make one of numbers above 2^63."""
    return np.frombuffer(array("Q", numbers), np.uint64)
