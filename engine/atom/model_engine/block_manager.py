"""BlockManager: KV blocks of sequences — prefix lookup, allocate, append, publish, free.

Works on a sequence's tokens and block tables, one of each group of layers (atom.sizing's
CacheGroup), and keeps no per-sequence state of its own; no tensors. Called by RowBlocks and
WindowBlocks. The prefix cache is a chain: a full block's hash covers the hash before it, so equal
tokens after different prefixes never meet. Each group marks the hashes, since its blocks hold other
layers' keys and values of the same tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from struct import Struct
from typing import Protocol

import numpy as np
import xxhash
from numpy.typing import NDArray

from atom.model_engine.blocks.adapter_blocks import AdapterBlocks
from atom.model_engine.blocks.block_log import Apart, BlockLog, Medium, Stored
from atom.model_engine.blocks.block_pool import BlockPool
from atom.model_engine.blocks.eviction_order import Policy, by_depth
from atom.model_engine.blocks.host_pages import Page
from atom.model_engine.blocks.prefix_search import PrefixSearch
from atom.model_engine.blocks.protected_pool import ProtectedPool
from atom.model_engine.blocks.state_checkpoints import StateCheckpoints
from atom.model_engine.blocks.stored_blocks import StoredBlocks
from atom.model_engine.request import LoRARequest
from atom.sizing.cache_groups import CacheGroup
from atom.sizing.mask_rule import CAUSAL, MaskRule

# Of each group, by index in the sequence; entries before the first held block are void.
BlockTables = tuple[list[int], ...]


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """The longest known prefix of a sequence, in blocks of tokens. block_ids: of each group as many
    of the last ones as are seen from behind them; last_hash: the chain after them; num_unheld: how
    many of these blocks no table holds, so that taking them uses up free ones. Where layers keep
    states it ends at a checkpoint, or is nothing."""

    num_blocks: int
    block_ids: list[list[int]]
    last_hash: int
    num_unheld: int


class OuterTier(Protocol):
    """A tier of the cache below the device, which follows what happens to blocks."""

    def published(self, group: int, block_ids: Sequence[int]) -> None:
        """Note blocks of a group that became findable, or hold what is findable elsewhere."""
        ...

    def left_window(self, block_ids: Sequence[int]) -> None:
        """Note blocks behind a window, which are about to be freed."""
        ...

    def evicted(self, block_ids: Sequence[int], hashes: Sequence[int]) -> None:
        """Note findable blocks that are evicted; their checkpoints are still kept."""
        ...

    def retired(self, number: int) -> None:
        """Note that an adapter is unloaded."""
        ...

    def clear(self, *, keep_pages: bool = False, keep_files: bool = False) -> None:
        """Forget the device's blocks and, unless they are kept, the tier's pages and files."""
        ...


class BlockManager:
    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        enable_prefix_caching: bool,
        root: str = "",
        masks: Sequence[MaskRule] = (CAUSAL,),
        checkpoints: StateCheckpoints | None = None,
        policy: Policy = "lru",
    ) -> None:
        """root: identity of the KV's inputs besides tokens (model, adapter); masks: the tokens that
        each group of layers sees; checkpoints: of states that layers keep, at some blocks' ends;
        policy: the order of evictions."""
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self.groups = tuple(CacheGroup((), mask) for mask in masks)
        pool = ProtectedPool if policy == "protected" else BlockPool
        self.pool = pool(num_blocks, block_size)
        self._blocks_of = Struct(f"{4 * block_size}s").iter_unpack  # packed tokens, one by one
        self._root_hash = xxhash.xxh64_intdigest(root.encode())
        nothing: list[list[int]] = [[] for _ in self.groups]
        self._no_match = PrefixMatch(0, nothing, self._root_hash, 0)
        # What a group's hashes differ by from the chain: the first one's by nothing.
        others = range(1, len(self.groups))
        self._marks = (
            0,
            *(xxhash.xxh64_intdigest(f"group {number}".encode()) for number in others),
        )
        self._adapters = AdapterBlocks(num_blocks)
        self.checkpoints = checkpoints
        if checkpoints is not None:
            self.pool.evicted = self._forget
        self._search: PrefixSearch | None = None
        if self.groups != (CacheGroup(),):
            self._search = PrefixSearch(
                self.pool, self.groups, self._marks, block_size, checkpoints
            )
        self._stored: StoredBlocks | None = None
        self._outer: OuterTier | None = None

    def tell(self, log: BlockLog) -> None:
        """Write to `log` which blocks become findable from now on, and which are forgotten."""
        self.pool.evicted = self._forget
        self._stored = StoredBlocks(log, [self._root_hash ^ mark for mark in self._marks])

    def attach(self, outer: OuterTier) -> None:
        """Let a tier below the device follow the blocks from now on."""
        self.pool.evicted = self._forget
        self._outer = outer

    @property
    def marks(self) -> Sequence[int]:
        """Return the difference of each group's hashes from the chain."""
        return self._marks

    def root_of(self, salt: str, lora: LoRARequest | None) -> int:
        """Return the hash before the first block of a sequence."""
        digest = xxhash.xxh64_intdigest
        chain = digest(salt.encode(), self._root_hash) if salt else self._root_hash
        if lora is not None:
            chain = digest(lora.lora_int_id.to_bytes(8, "little"), chain)
        return chain

    @property
    def tells(self) -> bool:
        """Return whether changes of the cache are logged."""
        return self._stored is not None

    def describe_images(
        self,
        named: NDArray[np.int32],
        tokens: NDArray[np.int32],
        keys: Mapping[int, tuple[tuple[str, int], ...]],
    ) -> None:
        """Describe blocks that are about to be published under other names than their tokens.
        named, tokens: of whole blocks; keys: by block, the images in it."""
        assert self._stored is not None, "there is a log"
        size = self.block_size
        parts = {block: slice(block * size, (block + 1) * size) for block in keys}
        self._stored.remember_images(
            {
                named[at].tobytes(): (tokens[at].tobytes(), keys[block])
                for block, at in parts.items()
            }
        )

    @property
    def num_free_blocks(self) -> int:
        return self.pool.num_free

    def blocks_for(self, num_tokens: int) -> int:
        """Return the number of blocks that `num_tokens` tokens take in one group."""
        return -(-num_tokens // self.block_size)

    def match_prefix(
        self, tokens: NDArray[np.int32], salt: str = "", lora: LoRARequest | None = None
    ) -> PrefixMatch:
        """Find the longest cached prefix of whole blocks, never all tokens: at least the last one
        must be computed, since its logits give the next token.
        salt: only sequences with the same one share blocks, so that no tenant can learn another's
        prompts from response times. lora: sequences of one adapter share blocks."""
        if not self.enable_prefix_caching:
            return self._no_match
        size = self.block_size
        packed = tokens[: (len(tokens) - 1) // size * size].tobytes()
        digest, find = xxhash.xxh64_intdigest, self.pool.find
        chain = self.root_of(salt, lora)
        if self._stored is not None and (salt or lora is not None):
            apart = Apart(salt, None if lora is None else lora.lora_name)
            for mark in self._marks:
                self._stored.remember_apart(chain ^ mark, apart)
        if self._search is not None:
            return self._match_groups(self._search, packed, chain)
        block_ids: list[int] = []
        hashes = [chain]
        for (block_tokens,) in self._blocks_of(packed):
            chain = digest(block_tokens, chain)
            block_id = find(chain)
            if block_id is None:
                break
            block_ids.append(block_id)
            hashes.append(chain)
        proven = self.pool.count_proven(block_ids, hashes[:-1], packed)
        if self.checkpoints is not None:
            proven = self.checkpoints.last_of(block_ids[:proven])
        del block_ids[proven:]
        unheld = self.pool.count_unreferenced(block_ids)
        return PrefixMatch(proven, [block_ids], hashes[proven], unheld)

    def _match_groups(self, search: PrefixSearch, packed: bytes, chain: int) -> PrefixMatch:
        hashes, block_ids = search.longest(packed, chain)
        unheld = sum(map(self.pool.count_unreferenced, block_ids))
        return PrefixMatch(len(hashes) - 1, block_ids, hashes[-1], unheld)

    def num_needed(self, num_tokens: int, *, lookahead: int = 0) -> int:
        """Count the blocks of all groups for a sequence of `num_tokens` tokens, drafts included."""
        size = self.block_size
        return sum([group.blocks(num_tokens, size, lookahead) for group in self.groups])

    def can_allocate(
        self, num_tokens: int, match: PrefixMatch, *, lookahead: int = 0, spare_blocks: int = 0
    ) -> bool:
        """Return whether a sequence of `num_tokens` tokens, drafts included, can hold its blocks
        while at least `spare_blocks` stay free."""
        needed = self.num_needed(num_tokens, lookahead=lookahead)
        new = needed - sum(map(len, match.block_ids))
        return new + match.num_unheld + spare_blocks <= self.pool.num_free

    def allocate(self, num_tokens: int, match: PrefixMatch) -> BlockTables:
        """Block tables that begin with the matched blocks: for all of `num_tokens` tokens in groups
        that see everything; in groups with a window more are appended as tokens are computed."""
        for block_ids in match.block_ids:
            self.pool.share(block_ids)
        new = self.blocks_for(num_tokens) - match.num_blocks
        if self._search is None:
            return (match.block_ids[0] + self.pool.allocate(new),)
        tables: list[list[int]] = []
        for group, block_ids in zip(self.groups, match.block_ids, strict=True):
            if group.window is None:
                tables.append(block_ids + self.pool.allocate(new))
            else:
                tables.append([0] * (match.num_blocks - len(block_ids)) + block_ids)
        return tuple(tables)

    def append_each(self, block_tables: Sequence[list[int]]) -> list[int]:
        """Append one more block to each; the caller has checked `num_free_blocks`."""
        block_ids = self.pool.allocate(len(block_tables))
        for table, block_id in zip(block_tables, block_ids, strict=True):
            table.append(block_id)
        return block_ids

    def publish(
        self,
        block_tables: BlockTables,
        tokens: NDArray[np.int32],
        first_block: int,
        chain: int,
        lora: LoRARequest | None = None,
    ) -> int:
        """Make computed full blocks shareable, all of them held.
        tokens: of the full blocks from index `first_block` on (a multiple of block_size); chain:
        the hash before them; lora: as in `match_prefix`. Returns the hash after them."""
        if not self.enable_prefix_caching:
            return chain
        if lora is not None or self._adapters.are_known:
            number = None if lora is None else lora.lora_int_id
            if self._adapters.is_retired(number):
                return self.chain(tokens, chain)
            end = first_block + len(tokens) // self.block_size
            for table in block_tables:
                self._adapters.note(table[first_block:end], number)
        packed, digest = tokens.tobytes(), xxhash.xxh64_intdigest
        if len(tokens) == self.block_size:  # a decode's, by far the most frequent
            hash_ = digest(packed, chain)
            new = self.pool.publish(block_tables[0][first_block], hash_, chain, packed)
            if new and self._stored is not None:
                self._stored.add(0, first_block, [chain, hash_], packed)
            if self._outer is not None:
                self._outer.published(0, block_tables[0][first_block : first_block + 1])
            if self._search is not None:
                self._publish_others(block_tables, first_block, chain, hash_, packed)
            return hash_
        hashes = [chain]
        for (block_tokens,) in self._blocks_of(packed):
            chain = digest(block_tokens, chain)
            hashes.append(chain)
        count = len(hashes) - 1
        rows = tokens.reshape(count, self.block_size)
        for group, (table, mark) in enumerate(zip(block_tables, self._marks, strict=True)):
            marked = [hash_ ^ mark for hash_ in hashes] if mark else hashes
            block_ids = table[first_block : first_block + count]
            added = self.pool.publish_all(block_ids, marked, rows)
            if self._stored is not None:
                self._stored.add_some(group, first_block, marked, packed, added)
            if self._outer is not None:
                self._outer.published(group, block_ids)
        return chain

    def publish_received(
        self,
        groups: Sequence[Sequence[tuple[int, int]]],
        tokens: NDArray[np.int32],
        first_block: int,
        chain: int,
        lora: LoRARequest | None = None,
    ) -> None:
        """Make blocks that another engine computed shareable, all of them held. groups: of each
        group of layers, the index in the prompt and the id of each block; tokens: of the full
        blocks from index `first_block` on; chain: the hash before them; lora: as in
        `match_prefix`."""
        number = None if lora is None else lora.lora_int_id
        if self._adapters.is_retired(number):
            return
        hashes, packed = [chain], []
        for (block_tokens,) in self._blocks_of(tokens.tobytes()):
            packed.append(block_tokens)
            hashes.append(xxhash.xxh64_intdigest(block_tokens, hashes[-1]))
        for group, (blocks, mark) in enumerate(zip(groups, self._marks, strict=True)):
            block_ids = [block_id for _, block_id in blocks]
            if number is not None or self._adapters.are_known:
                self._adapters.note(block_ids, number)
            for index, block_id in blocks:
                row = index - first_block
                before, after = hashes[row] ^ mark, hashes[row + 1] ^ mark
                new = self.pool.publish(block_id, after, before, packed[row])
                if new and self._stored is not None:
                    self._stored.add(group, index, [before, after], packed[row])
            if self._outer is not None:
                self._outer.published(group, block_ids)

    def keep_checkpoint(
        self, tokens: NDArray[np.int32], chain: int, checkpoint: int, *, between: bool
    ) -> int | None:
        """Make a checkpoint of states findable at the end of a findable block, else free it.
        tokens: of the block; chain: the hash before it; between: as in `StateCheckpoints.keep`.
        Returns the block."""
        assert self.checkpoints is not None, "there is a checkpoint"
        block = self.pool.find(self.chain(tokens, chain))
        if block is None or not self.pool.count_proven([block], [chain], tokens.tobytes()):
            self.checkpoints.give_back(checkpoint)
            return None
        self.checkpoints.keep(block, checkpoint, between=between)
        return block

    def _publish_others(
        self, block_tables: BlockTables, at: int, chain: int, hash_: int, packed: bytes
    ) -> None:
        """Publish one block of every group but the first. at: its index; chain: the hash before
        it; hash_: the one after it; packed: its tokens."""
        others = zip(block_tables[1:], self._marks[1:], strict=True)
        for group, (table, mark) in enumerate(others, start=1):
            new = self.pool.publish(table[at], hash_ ^ mark, chain ^ mark, packed)
            if new and self._stored is not None:
                self._stored.add(group, at, [chain ^ mark, hash_ ^ mark], packed)
            if self._outer is not None:
                self._outer.published(group, table[at : at + 1])

    def publish_read(self, block_id: int, page: Page, index: int, lora_name: str | None) -> None:
        """Make a held block findable that another tier's page was read into. index: of the block
        in its sequence; lora_name: of the adapter that computed it."""
        if self._adapters.is_retired(page.lora):
            return
        if page.lora is not None or self._adapters.are_known:
            self._adapters.note([block_id], page.lora)
        new = self.pool.publish(block_id, page.hash, page.parent, page.packed)
        if new and self._stored is not None:
            self._stored.add_read(page, index, lora_name)
        if self._outer is not None:
            self._outer.published(page.group, [block_id])

    def chain(self, tokens: NDArray[np.int32], chain: int) -> int:
        """Return the hash after the full blocks of `tokens`. chain: the hash before them."""
        for (block_tokens,) in self._blocks_of(tokens.tobytes()):
            chain = xxhash.xxh64_intdigest(block_tokens, chain)
        return chain

    def free(self, block_tables: BlockTables, first_blocks: Sequence[int] = (0,)) -> None:
        """Free all blocks of a sequence. first_blocks: the first that each group holds."""
        if self._search is None:
            self.pool.free(block_tables[0])
        else:
            self.pool.free(by_depth(block_tables, first_blocks))

    def free_left(self, group: int, first: int, block_ids: Sequence[int]) -> None:
        """Free blocks of a running sequence, from index `first` on, that none of its later tokens
        sees in this group."""
        if self._outer is not None:
            useless = block_ids
            if self.checkpoints is not None:
                seen = partial(self.groups[group].matched_blocks, block_size=self.block_size)
                useless = self.checkpoints.without_windows(block_ids, first, seen)
            self._outer.left_window(useless)
        self.pool.free(block_ids)

    def retire_lora(self, number: int) -> None:
        """Forget the blocks that an adapter computed, and publish no more of them: it is unloaded.
        Its requests that run keep the blocks that they hold."""
        self.pool.forget(self._adapters.retire(number))
        if self._outer is not None:
            self._outer.retired(number)

    def lora_of(self, block_id: int) -> int | None:
        """Return the number of the adapter that computed a block; None for the model alone."""
        return self._adapters.number_of(block_id)

    def is_retired(self, number: int | None) -> bool:
        """Return whether the adapter of this number is unloaded, and its requests still run."""
        return self._adapters.is_retired(number)

    def forget_lora(self, number: int) -> None:
        """Forget a retired adapter whose last request has ended."""
        self._adapters.forget(number)

    def reset_prefix_cache(self, *, keep_host: bool = False, keep_files: bool = False) -> None:
        """Forget all cached blocks. keep_host: the pages of the host's tier stay findable;
        keep_files: those of a disk stay there."""
        if self._outer is not None:
            self._outer.clear(keep_pages=keep_host, keep_files=keep_host or keep_files)
        hashes = self.pool.reset_cache()
        if self.checkpoints is not None:
            self.checkpoints.clear()
        if self._stored is not None:
            if keep_host and self._outer is not None:
                self._stored.remove(hashes)
            else:
                self._stored.clear()

    # ---- events of pages in tiers -------------------------------------------------------------

    def told_of(self, page: Page, medium: Medium) -> Stored | None:
        """Return the event of a block's page that reaches a tier; None if no events are logged."""
        return None if self._stored is None else self._stored.of_page(page, medium)

    def log(self, event: Stored) -> None:
        """Log an event of `told_of`."""
        if self._stored is not None:
            self._stored.log(event)

    def tell_removed(self, hashes: list[int], medium: Medium) -> None:
        """Log pages that a tier no longer holds."""
        if self._stored is not None and hashes:
            self._stored.remove(hashes, medium)

    def _forget(self, block_ids: list[int], hashes: list[int]) -> None:
        """Offer forgotten blocks to the tier below, drop their checkpoints and log their
        hashes."""
        if self._outer is not None:
            self._outer.evicted(block_ids, hashes)
        if self.checkpoints is not None:
            self.checkpoints.evicted(block_ids)
        if self._stored is not None:
            self._stored.remove(hashes)
