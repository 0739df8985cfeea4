"""Whatever comes and goes, a cached block is only ever found by who would compute the same."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from atom.model_engine.block_manager import BlockManager

SIZE = 4
NUM_BLOCKS = 12


def array(tokens: list[int]) -> np.ndarray:
    return np.array(tokens, dtype=np.int32)


@dataclass
class Holder:
    """A sequence as far as the block manager sees it."""

    tokens: list[int]
    salt: str
    chain: int
    table: list[int]
    published: int


# They begin alike, so that there is something to share.
PROMPTS = st.builds(
    lambda kind, shared, own: [kind] * shared + own,
    kind=st.integers(0, 1),
    shared=st.integers(0, 18),
    own=st.lists(st.integers(0, 1), min_size=1, max_size=6),
)


class ManagerMachine(RuleBasedStateMachine):
    """Beside it, a memory that knows of every block what was computed into it: the salt and all
    tokens up to its end, which is what its keys and values depend on."""

    def __init__(self) -> None:
        super().__init__()
        self.manager = BlockManager(NUM_BLOCKS, SIZE, enable_prefix_caching=True, root="model")
        self.memory: dict[int, tuple[object, ...]] = {}
        self.holders: list[Holder] = []

    @rule(tokens=PROMPTS, salt=st.sampled_from(["", "a"]))
    def enter(self, tokens: list[int], salt: str) -> None:
        match = self.manager.match_prefix(array(tokens), salt)
        assert len(match.block_ids) * SIZE < len(tokens), "one token at least is computed"
        for index, block in enumerate(match.block_ids):
            assert self.memory[block] == (salt, *tokens[: (index + 1) * SIZE])
        free = self.manager.num_free_blocks
        if not self.manager.can_allocate(len(tokens), match):
            assert self.manager.blocks_for(len(tokens)) > free - match.num_unheld
            return
        table = self.manager.allocate(len(tokens), match)
        assert len(table) == self.manager.blocks_for(len(tokens))
        assert table[: len(match.block_ids)] == match.block_ids
        holder = Holder(tokens, salt, match.last_hash, table, len(match.block_ids))
        self.holders.append(holder)
        self._compute(holder)

    def _compute(self, holder: Holder) -> None:
        """Fill the blocks that are its own."""
        shared = holder.published
        for index in range(shared, len(holder.table)):
            known = tuple(holder.tokens[: (index + 1) * SIZE])
            self.memory[holder.table[index]] = (holder.salt, *known)

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        holder = data.draw(st.sampled_from(self.holders))
        first, full = holder.published, len(holder.tokens) // SIZE
        new = array(holder.tokens[first * SIZE : full * SIZE])
        holder.chain = self.manager.publish(holder.table, new, first, holder.chain)
        holder.published = full
        if first == 0:  # else what comes before it may have been evicted or forgotten
            found = self.manager.match_prefix(array([*holder.tokens, 9]), holder.salt)
            assert len(found.block_ids) == full, "what was published is found at once"

    @precondition(lambda self: self.holders and self.manager.num_free_blocks)
    @rule(data=st.data(), token=st.integers(0, 1))
    def grow(self, data: st.DataObject, token: int) -> None:
        holder = data.draw(st.sampled_from(self.holders))
        if len(holder.tokens) == len(holder.table) * SIZE:
            (block,) = self.manager.append_each([holder.table])
            assert holder.table[-1] == block
        holder.tokens = [*holder.tokens, token]
        self._compute(holder)

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        holder = self.holders.pop(data.draw(st.integers(0, len(self.holders) - 1)))
        self.manager.free(holder.table)
        assert holder.table == []

    @rule()
    def reset(self) -> None:
        self.manager.reset_prefix_cache()
        for holder in self.holders:
            found = self.manager.match_prefix(array([*holder.tokens, 9]), holder.salt)
            assert found.block_ids == []

    @invariant()
    def books_balance(self) -> None:
        self.manager.pool.check_integrity()
        held = set(itertools.chain.from_iterable(holder.table for holder in self.holders))
        assert self.manager.pool.num_held == len(held)
        for holder in self.holders:
            for index, block in enumerate(holder.table):
                known = holder.tokens[: (index + 1) * SIZE]
                assert self.memory[block] == (holder.salt, *known), "somebody else wrote into it"


ManagerMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestManagerUnderAnything = ManagerMachine.TestCase


TOKENS = array(list(range(9)))


def manager_that_knows(tokens: np.ndarray, *, enabled: bool = True, salt: str = "") -> BlockManager:
    manager = BlockManager(NUM_BLOCKS, SIZE, enable_prefix_caching=enabled, root="model")
    before = manager.match_prefix(tokens, salt).last_hash
    manager.publish(manager.pool.allocate(2), tokens[:8], 0, before)
    return manager


@pytest.mark.parametrize(("salt", "blocks"), [("", 0), ("b", 0), ("a", 2)])
def test_only_the_same_salt_shares(salt: str, blocks: int) -> None:
    manager = manager_that_knows(TOKENS, salt="a")
    assert len(manager.match_prefix(TOKENS, salt).block_ids) == blocks


def test_without_a_prefix_cache_nothing_is_found() -> None:
    assert manager_that_knows(TOKENS, enabled=False).match_prefix(TOKENS).block_ids == []


def test_a_hash_tells_of_model_and_adapter_too() -> None:
    """Were a cache ever handed from one engine to another, their blocks would not meet."""
    hashes = {
        BlockManager(1, SIZE, enable_prefix_caching=True, root=root).match_prefix(TOKENS).last_hash
        for root in ("model", "model|adapter", "other")
    }
    assert len(hashes) == 3
