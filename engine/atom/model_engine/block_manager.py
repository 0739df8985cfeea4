"""BlockManager: KV blocks of sequences — prefix lookup, allocate, append, publish, free.

Works on a sequence's tokens and block table, and keeps no per-sequence state of its own; no
tensors. Called by Scheduler only. The prefix cache is a chain: a full block's hash covers the hash
before it, so equal tokens after different prefixes never meet (docs/guides/scheduling.md, Memory).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct

import numpy as np
import xxhash
from numpy.typing import NDArray

from atom.model_engine.block_pool import BlockPool


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """block_ids: cached blocks of the longest known prefix; last_hash: the chain after them;
    num_unheld: how many of them nobody holds, so that taking them uses up free blocks."""

    block_ids: list[int]
    last_hash: int
    num_unheld: int


class BlockManager:
    def __init__(
        self, num_blocks: int, block_size: int, *, enable_prefix_caching: bool, root: str = ""
    ) -> None:
        """root: identity of what the KV depends on besides tokens (model, adapter)."""
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self.pool = BlockPool(num_blocks, block_size)
        self._blocks_of = Struct(f"{4 * block_size}s").iter_unpack  # packed tokens, one by one
        self._root_hash = xxhash.xxh64_intdigest(root.encode())
        self._no_match = PrefixMatch(block_ids=[], last_hash=self._root_hash, num_unheld=0)

    @property
    def num_free_blocks(self) -> int:
        return self.pool.num_free

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def match_prefix(self, tokens: NDArray[np.int32], salt: str = "") -> PrefixMatch:
        """The longest cached prefix of whole blocks, never all tokens: at least one must be
        computed, since it is the last one's logits that give the next token.

        salt: only sequences with the same one share blocks, so that nobody else can find out by
        the time it takes what somebody has asked."""
        if not self.enable_prefix_caching:
            return self._no_match
        size = self.block_size
        packed = tokens[: (len(tokens) - 1) // size * size].tobytes()
        digest, find = xxhash.xxh64_intdigest, self.pool.find
        block_ids: list[int] = []
        chain = digest(salt.encode(), self._root_hash) if salt else self._root_hash
        hashes = [chain]
        for (block_tokens,) in self._blocks_of(packed):
            chain = digest(block_tokens, chain)
            block_id = find(chain)
            if block_id is None:
                break
            block_ids.append(block_id)
            hashes.append(chain)
        proven = self.pool.count_proven(block_ids, hashes[:-1], packed)
        del block_ids[proven:]
        unheld = self.pool.count_unheld(block_ids)
        return PrefixMatch(block_ids=block_ids, last_hash=hashes[proven], num_unheld=unheld)

    def can_allocate(self, num_tokens: int, match: PrefixMatch, *, spare_blocks: int = 0) -> bool:
        """Whether `allocate` for so many tokens leaves at least `spare_blocks` free."""
        new = self.blocks_for(num_tokens) - len(match.block_ids)
        return new + match.num_unheld + spare_blocks <= self.pool.num_free

    def allocate(self, num_tokens: int, match: PrefixMatch) -> list[int]:
        """A block table for `num_tokens` tokens that begins with the matched blocks."""
        self.pool.share(match.block_ids)
        new = self.blocks_for(num_tokens) - len(match.block_ids)
        return match.block_ids + self.pool.allocate(new)

    def append_each(self, block_tables: Sequence[list[int]]) -> list[int]:
        """One more block for each; the caller has checked `num_free_blocks`."""
        block_ids = self.pool.allocate(len(block_tables))
        for table, block_id in zip(block_tables, block_ids, strict=True):
            table.append(block_id)
        return block_ids

    def publish(
        self,
        block_table: list[int],
        tokens: NDArray[np.int32],
        first_block: int,
        chain: int,
    ) -> int:
        """Make computed full blocks shareable.

        tokens: those of the full blocks from index `first_block` on (a multiple of block_size);
        chain: the hash before them. Returns the hash after them.
        """
        if not self.enable_prefix_caching:
            return chain
        packed, digest = tokens.tobytes(), xxhash.xxh64_intdigest
        if len(tokens) == self.block_size:  # a decode's, by far the most frequent
            hash_ = digest(packed, chain)
            self.pool.publish(block_table[first_block], hash_, chain, packed)
            return hash_
        hashes = [chain]
        for (block_tokens,) in self._blocks_of(packed):
            chain = digest(block_tokens, chain)
            hashes.append(chain)
        count = len(hashes) - 1
        ids = block_table[first_block : first_block + count]
        self.pool.publish_all(ids, hashes, tokens.reshape(count, self.block_size))
        return chain

    def free(self, block_table: list[int]) -> None:
        self.pool.free(block_table)
        block_table.clear()

    def reset_prefix_cache(self) -> None:
        self.pool.reset_cache()
