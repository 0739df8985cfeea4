"""BlockPool: which KV blocks are free, shared or cached, every operation O(1) per block.

Knows block ids, reference counts and content hashes; knows no sequences and no tensors. Called by
BlockManager only. A block is in exactly one of three states:
  held    reference count ≥ 1 (and perhaps cached: others may share it)
  cached  count 0, content still valid and findable by hash; evicted least recently used first
  blank   count 0, content worthless
A cached block is one block however many share it. `check_integrity` states all of this and may be
called at any moment.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BlockContent:
    """What a full block holds, enough to prove a hit: the chain's hash so far, the hash before
    this block, and this block's tokens packed as int32."""

    hash: int
    parent_hash: int
    tokens: bytes


class BlockPool:
    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._ref_counts = [0] * num_blocks
        self._contents: list[BlockContent | None] = [None] * num_blocks
        self._by_hash: dict[int, int] = {}
        self._blank = list(range(num_blocks - 1, -1, -1))  # taken from the end: low ids first
        self._cached: OrderedDict[int, None] = OrderedDict()  # oldest first

    @property
    def num_free(self) -> int:
        """Blocks that `allocate` can hand out: blank and cached ones."""
        return len(self._blank) + len(self._cached)

    @property
    def num_held(self) -> int:
        return self.num_blocks - self.num_free

    @property
    def num_indexed(self) -> int:
        """Blocks findable by their content."""
        return len(self._by_hash)

    def allocate(self, count: int) -> list[int]:
        """Take `count` blocks with worthless content; the caller has checked `num_free`."""
        blank = self._blank
        if count <= len(blank):
            taken = blank[len(blank) - count :]
            del blank[len(blank) - count :]
            taken.reverse()
        else:
            assert count <= self.num_free, "allocate() beyond num_free"
            taken = blank[::-1]
            blank.clear()
            while len(taken) < count:
                taken.append(self._evict())
        for block_id in taken:
            self._ref_counts[block_id] = 1
        return taken

    def _evict(self) -> int:
        block_id, _ = self._cached.popitem(last=False)
        content = self._contents[block_id]
        assert content is not None
        del self._by_hash[content.hash]
        self._contents[block_id] = None
        return block_id

    def find(self, hash_: int, parent_hash: int, tokens: bytes) -> int | None:
        """The block with exactly this content after exactly this prefix, or None."""
        block_id = self._by_hash.get(hash_)
        if block_id is None:
            return None
        content = self._contents[block_id]
        assert content is not None
        if content.parent_hash != parent_hash or content.tokens != tokens:
            return None  # a 64-bit collision: a miss, never someone else's data
        return block_id

    def is_held(self, block_id: int) -> bool:
        return self._ref_counts[block_id] > 0

    def share(self, block_id: int) -> None:
        """Take one more reference to a held or cached block."""
        if self._ref_counts[block_id] == 0:
            del self._cached[block_id]
        self._ref_counts[block_id] += 1

    def publish(self, block_id: int, content: BlockContent) -> None:
        """Make a held block findable. A block whose content is already findable elsewhere stays
        anonymous: block tables are append-only, so duplicates are not merged."""
        if content.hash in self._by_hash or self._contents[block_id] is not None:
            return
        self._by_hash[content.hash] = block_id
        self._contents[block_id] = content

    def free(self, block_ids: Sequence[int]) -> None:
        """Drop one reference of each; the last one leaves a cached block findable.

        Freed from the end, so that of one sequence the deepest blocks are evicted first: a prefix
        without its beginning is useless.
        """
        for block_id in reversed(block_ids):
            count = self._ref_counts[block_id] - 1
            assert count >= 0, f"block {block_id} freed twice"
            self._ref_counts[block_id] = count
            if count == 0:
                if self._contents[block_id] is None:
                    self._blank.append(block_id)
                else:
                    self._cached[block_id] = None

    def reset_cache(self) -> None:
        """Forget all cached content; held blocks stay held but can no longer be found."""
        for block_id in self._by_hash.values():
            self._contents[block_id] = None
        self._by_hash.clear()
        self._blank.extend(self._cached)
        self._cached.clear()

    def check_integrity(self) -> None:
        """Raise AssertionError if any invariant of the class docstring is broken."""
        blank, cached = set(self._blank), set(self._cached)
        assert len(blank) == len(self._blank), "a blank block is listed twice"
        assert not blank & cached, "a block is both blank and cached"
        for block_id in range(self.num_blocks):
            count, content = self._ref_counts[block_id], self._contents[block_id]
            assert count >= 0
            assert (count == 0) == (block_id in blank or block_id in cached)
            assert not (block_id in blank and content is not None), "blank block with content"
            assert not (block_id in cached and content is None), "cached block without content"
            if content is not None:
                assert self._by_hash.get(content.hash) == block_id
        assert len(self._by_hash) == sum(content is not None for content in self._contents)
