"""Whatever comes and goes, a cached block is only ever found by who would compute the same."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from atom.model_engine.block_manager import BlockManager, PrefixMatch
from atom.model_engine.blocks.block_log import BlockLog
from atom.model_engine.kv_events.cached_blocks import CachedBlocks
from atom.model_engine.kv_events.events import EventMaker, salt_digest
from atom.model_engine.request import LoRARequest
from atom.sizing.mask_rule import CAUSAL, sliding_window
from tests.support.engine_core.kv_event_index import KVEventIndex
from tests.support.random_search import examples

SIZE = 4
NUM_BLOCKS = 12


def array(tokens: list[int]) -> np.ndarray:
    return np.array(tokens, dtype=np.int32)


@dataclass
class Holder:
    """A sequence as far as the block manager sees it. first: that each group holds."""

    tokens: list[int]
    apart: str
    lora: LoRARequest | None
    chain: int
    tables: tuple[list[int], ...]
    first: list[int]
    published: int


# They begin alike, so that there is something to share.
PROMPTS = st.builds(
    lambda kind, shared, own: [kind] * shared + own,
    kind=st.integers(0, 1),
    shared=st.integers(0, 18),
    own=st.lists(st.integers(0, 1), min_size=1, max_size=6),
)


ADAPTERS = ("x", "y")
# An adapter's name, a bar and a salt: what sets sequences with the same tokens apart.
APART = ["|", "|a", "x|", "x|a", "y|"]


class ManagerMachine(RuleBasedStateMachine):
    """Beside it, a memory that knows of every block what was computed into it: the group of layers,
    adapter, salt and all tokens up to its end, which is what its keys and values depend on."""

    holders: list[Holder]

    @initialize(
        windows=st.sampled_from([(None,), (None,), (6,), (None, 6), (1, None), (3, None, 12, None)])
    )
    def build(self, windows: tuple[int | None, ...]) -> None:
        self.manager = BlockManager(
            NUM_BLOCKS * len(windows), SIZE, enable_prefix_caching=True, root="model",
            masks=tuple(map(sliding_window, windows)),
        )  # fmt: skip
        self.log, self.router = BlockLog(), KVEventIndex()
        self.manager.tell(self.log)
        self.maker = EventMaker(SIZE, [group.mask for group in self.manager.groups])
        self.cached = CachedBlocks(SIZE)
        self.loras = {name: LoRARequest(name, at) for at, name in enumerate(ADAPTERS, start=1)}
        self.memory: dict[int, tuple[object, ...]] = {}
        self.published: set[tuple[object, ...]] = set()
        self.holders = []

    def _content(
        self, group: int, apart: str, tokens: list[int], blocks: int
    ) -> tuple[object, ...]:
        """As events tell it."""
        name, _, salt = apart.partition("|")
        keys = filter(None, (name, salt and salt_digest(salt)))
        return (group, "|".join(keys), *tokens[: blocks * SIZE])

    def _match(self, tokens: list[int], apart: str, lora: LoRARequest | None) -> PrefixMatch:
        return self.manager.match_prefix(array(tokens), apart.partition("|")[2], lora)

    def _is_retired(self, lora: LoRARequest | None) -> bool:
        return lora is not None and self.loras[lora.lora_name] != lora

    @rule(tokens=PROMPTS, apart=st.sampled_from(APART))
    def enter(self, tokens: list[int], apart: str) -> None:
        lora = self.loras.get(apart.partition("|")[0])
        match = self._match(tokens, apart, lora)
        assert match.num_blocks == self._longest_prefix(tokens, apart)
        for group, ids in enumerate(match.block_ids):
            for index, block in enumerate(ids, match.num_blocks - len(ids)):
                assert self.memory[block] == self._content(group, apart, tokens, index + 1)
        free, needed = self.manager.num_free_blocks, self._needed(len(tokens), match.num_blocks)
        if not self.manager.can_allocate(len(tokens), match):
            assert needed > free - match.num_unheld
            return
        tables = self.manager.allocate(len(tokens), match)
        first = [
            match.num_blocks - len(ids) if group.window is not None else 0
            for group, ids in zip(self.manager.groups, match.block_ids, strict=True)
        ]
        holder = Holder(tokens, apart, lora, match.last_hash, tables, first, match.num_blocks)
        self.holders.append(holder)
        for table, ids, start in zip(tables, match.block_ids, first, strict=True):
            assert table[start : match.num_blocks] == ids
        if not self._fill(holder):
            self.leave_last()

    def _needed(self, num_tokens: int, matched: int) -> int:
        """Blocks of all groups, those that were found aside."""
        return sum(
            group.blocks(num_tokens, SIZE) - group.matched_blocks(matched, SIZE)
            for group in self.manager.groups
        )

    def _longest_prefix(self, tokens: list[int], apart: str) -> int:
        """By trying every length, of what is still to be found."""
        pool = self.manager.pool
        kept = {
            content
            for block, content in self.memory.items()
            if content in self.published and pool._hashes[block] is not None
        }
        for blocks in range((len(tokens) - 1) // SIZE, 0, -1):
            wanted = (
                self._content(number, apart, tokens, index + 1)
                for number, group in enumerate(self.manager.groups)
                for index in range(blocks - group.matched_blocks(blocks, SIZE), blocks)
            )
            if kept.issuperset(wanted):
                return blocks
        return 0

    def _fill(self, holder: Holder) -> bool:
        """Blocks for all its tokens in every group, as if they were computed in one chunk; False if
        there are not as many. What is its own is computed."""
        missing = [
            table
            for table in holder.tables
            for _ in range(len(table), self.manager.blocks_for(len(holder.tokens)))
        ]
        if len(missing) > self.manager.num_free_blocks:
            return False
        self.manager.append_each(missing)
        self._compute(holder)
        return True

    def _compute(self, holder: Holder) -> None:
        """Fill the blocks that are its own."""
        for group, table in enumerate(holder.tables):
            for index in range(holder.published, len(table)):
                content = self._content(group, holder.apart, holder.tokens, index + 1)
                self.memory[table[index]] = content

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        holder = data.draw(st.sampled_from(self.holders))
        first, full = holder.published, len(holder.tokens) // SIZE
        new = array(holder.tokens[first * SIZE : full * SIZE])
        before = dict(self.manager.pool._by_hash)
        after = self.manager.chain(new, holder.chain)
        holder.chain = self.manager.publish(holder.tables, new, first, holder.chain, holder.lora)
        assert holder.chain == after
        holder.published = full
        if self._is_retired(holder.lora):
            assert self.manager.pool._by_hash == before, "an adapter that left publishes nothing"
            return
        for table in holder.tables:
            self.published |= {self.memory[block] for block in table[first:full]}
        if first == 0:  # else what comes before it may have been evicted or forgotten
            found = self._match([*holder.tokens, 9], holder.apart, holder.lora)
            assert found.num_blocks == full, "what was published is found at once"

    @precondition(lambda self: self.holders)
    @rule(data=st.data(), token=st.integers(0, 1))
    def grow(self, data: st.DataObject, token: int) -> None:
        holder = data.draw(st.sampled_from(self.holders))
        holder.tokens = [*holder.tokens, token]
        if not self._fill(holder):
            holder.tokens.pop()

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def slide(self, data: st.DataObject) -> None:
        """What is published and out of its window is given back."""
        holder = data.draw(st.sampled_from(self.holders))
        for number, group in enumerate(self.manager.groups):
            if group.window is not None:
                left = min(len(holder.tokens) - group.window + 1, holder.published * SIZE) // SIZE
                end = max(holder.first[number], left)
                self.manager.pool.free(holder.tables[number][holder.first[number] : end])
                holder.first[number] = end

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        self.holders.append(self.holders.pop(data.draw(st.integers(0, len(self.holders) - 1))))
        self.leave_last()

    def leave_last(self) -> None:
        holder = self.holders.pop()
        self.manager.free(holder.tables, holder.first)
        lora = holder.lora
        is_open = any(each.lora == lora for each in self.holders)
        if lora is not None and self._is_retired(lora) and not is_open:
            self.manager.forget_lora(lora.lora_int_id)

    @rule(name=st.sampled_from(ADAPTERS))
    def load_anew(self, name: str) -> None:
        """Its blocks are not findable any more, and those of no other are lost."""
        lora = self.loras[name]
        pool, free = self.manager.pool, self.manager.num_free_blocks
        others = {
            hash_: block
            for hash_, block in pool._by_hash.items()
            if str(self.memory[block][1]).partition("|")[0] != name
        }
        self.manager.retire_lora(lora.lora_int_id)
        number = 1 + max(each.lora_int_id for each in self.loras.values())
        self.loras[name] = LoRARequest(name, number)
        assert pool._by_hash == others
        assert self.manager.num_free_blocks == free, "who runs keeps what it holds"
        for holder in self.holders:
            if holder.lora is not None and holder.lora.lora_name == name:
                for each in (lora, self.loras[name]):
                    assert self._match([*holder.tokens, 9], holder.apart, each).num_blocks == 0

    @rule()
    def reset(self) -> None:
        self.manager.reset_prefix_cache()
        for holder in self.holders:
            found = self._match([*holder.tokens, 9], holder.apart, holder.lora)
            assert found.num_blocks == 0

    @invariant()
    def books_balance(self) -> None:
        if not hasattr(self, "manager"):
            return
        self.manager.pool.check_integrity()
        held = set()
        for holder in self.holders:
            for group, (table, first) in enumerate(zip(holder.tables, holder.first, strict=True)):
                held |= set(table[first:])
                for index in range(first, len(table)):
                    known = self._content(group, holder.apart, holder.tokens, index + 1)
                    assert self.memory[table[index]] == known, "somebody else wrote into it"
        assert self.manager.pool.num_referenced == len(held)

    @invariant()
    def a_router_knows_what_is_findable(self) -> None:
        if not hasattr(self, "manager"):
            return
        entries = self.log.take()
        self.cached.follow(entries)
        late = KVEventIndex()
        anew = EventMaker(SIZE, [group.mask for group in self.manager.groups])
        for reader, events in (
            (self.router, self.maker.events(entries)),
            (late, anew.events(self.cached.entries())),
        ):
            for event in msgspec.msgpack.decode(msgspec.msgpack.encode(events)):
                reader.take(event)
        assert set(late.contents) == set(self.router.contents), "a replay tells the same"
        pool = self.manager.pool
        assert set(self.router.contents) == set(pool._by_hash)
        for hash_, block in pool._by_hash.items():
            assert self.router.contents[hash_] in (self.memory[block], None)


ManagerMachine.TestCase.settings = settings(
    max_examples=examples(32, more=125), stateful_step_count=30, deadline=None
)
TestManagerUnderAnything = ManagerMachine.TestCase


TOKENS = array(list(range(9)))


def manager_that_knows(tokens: np.ndarray, *, enabled: bool = True, salt: str = "") -> BlockManager:
    manager = BlockManager(NUM_BLOCKS, SIZE, enable_prefix_caching=enabled, root="model")
    before = manager.match_prefix(tokens, salt).last_hash
    manager.publish((manager.pool.allocate(2),), tokens[:8], 0, before)
    return manager


@pytest.mark.parametrize(("salt", "blocks"), [("", 0), ("b", 0), ("a", 2)])
def test_only_the_same_salt_shares(salt: str, blocks: int) -> None:
    manager = manager_that_knows(TOKENS, salt="a")
    assert manager.match_prefix(TOKENS, salt).num_blocks == blocks


def test_without_a_prefix_cache_nothing_is_found() -> None:
    assert manager_that_knows(TOKENS, enabled=False).match_prefix(TOKENS).num_blocks == 0


def test_a_hash_tells_of_model_and_adapter_too() -> None:
    """Were a cache ever handed from one engine to another, their blocks would not meet."""
    hashes = {
        BlockManager(1, SIZE, enable_prefix_caching=True, root=root).match_prefix(TOKENS).last_hash
        for root in ("model", "model|adapter", "other")
    }
    assert len(hashes) == 3


def windowed_manager(
    windows: tuple[int | None, ...],
) -> tuple[BlockManager, tuple[list[int], ...]]:
    """That knows four blocks of tokens, of every group all of them; the blocks of each."""
    manager = BlockManager(
        NUM_BLOCKS * 2, SIZE, enable_prefix_caching=True, masks=tuple(map(sliding_window, windows))
    )
    tables = tuple(manager.pool.allocate(4) for _ in windows)
    start = manager.match_prefix(array([])).last_hash
    manager.publish(tables, array(list(range(16))), 0, start)
    return manager, tables


@pytest.mark.parametrize(
    ("window", "needed"), [(1, 0), (2, 1), (5, 1), (6, 2), (13, 3), (14, 4), (99, 4)]
)
def test_a_hit_needs_of_a_window_what_the_next_token_sees(window: int, needed: int) -> None:
    manager, (full, windowed) = windowed_manager((None, window))
    match = manager.match_prefix(array(list(range(17))))
    assert match.num_blocks == 4
    assert match.block_ids == [full, windowed[4 - needed :]]


def evict(manager: BlockManager, blocks: list[int]) -> None:
    """Give these back and have them taken by somebody."""
    manager.pool.free(blocks)
    taken = manager.pool.allocate(manager.num_free_blocks)
    assert set(blocks) <= set(taken)


@pytest.mark.parametrize(("gone", "found"), [(0, 4), (1, 4), (2, 2), (3, 3)])
def test_a_prefix_ends_where_a_window_still_has_its_blocks(gone: int, found: int) -> None:
    manager, (full, windowed) = windowed_manager((None, 6))  # two blocks, one after the first
    evict(manager, [windowed[gone]])
    match = manager.match_prefix(array(list(range(17))))
    assert match.num_blocks == found
    assert match.block_ids == [full[:found], windowed[max(0, found - 2) : found]]


def test_where_the_group_that_sees_everything_ends_no_window_helps() -> None:
    manager, (full, windowed) = windowed_manager((None, 6))
    evict(manager, [full[1]])
    match = manager.match_prefix(array(list(range(17))))
    assert match.block_ids == [full[:1], windowed[:1]]


def test_the_deepest_blocks_of_all_groups_are_evicted_first() -> None:
    manager, tables = windowed_manager((None, 6))
    free = manager.num_free_blocks
    manager.free(tables, [0, 0])
    taken = manager.pool.allocate(free + 4)
    assert set(taken[free:]) == {tables[0][2], tables[0][3], tables[1][2], tables[1][3]}


def test_a_block_that_a_decode_fills_is_found_in_every_group() -> None:
    manager = BlockManager(
        NUM_BLOCKS,
        SIZE,
        enable_prefix_caching=True,
        masks=(CAUSAL, sliding_window(6), sliding_window(9)),
    )
    tables = tuple(manager.pool.allocate(1) for _ in range(3))
    manager.publish(tables, TOKENS[:SIZE], 0, manager.match_prefix(TOKENS[:0]).last_hash)
    assert manager.match_prefix(TOKENS).block_ids == list(tables)


@pytest.mark.parametrize("next_lora", [None, LoRARequest("x", 2)], ids=["model", "adapter"])
@pytest.mark.parametrize("windows", [(None,), (None, 6)])
def test_a_block_that_another_computes_anew_outlasts_its_first_adapter(
    next_lora: LoRARequest | None, windows: tuple[int | None, ...]
) -> None:
    manager = BlockManager(
        2 * len(windows),
        SIZE,
        enable_prefix_caching=True,
        masks=tuple(map(sliding_window, windows)),
    )
    first = LoRARequest("x", 1)
    for lora in (first, next_lora):
        before = manager.match_prefix(TOKENS, "", lora).last_hash
        tables = tuple(manager.pool.allocate(2) for _ in windows)  # all that there are
        manager.publish(tables, TOKENS[:8], 0, before, lora)
        manager.free(tables, [0] * len(windows))
    manager.retire_lora(first.lora_int_id)
    assert manager.match_prefix(TOKENS, "", next_lora).num_blocks == 2
