"""The block pool keeps its books whatever is done to it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from atom.model_engine.block_pool import BlockPool


def content(number: int) -> tuple[int, int, bytes]:
    """Hash, hash before it, tokens: all different for every number."""
    return number, number - 1, number.to_bytes(8, "little")


class PoolMachine(RuleBasedStateMachine):
    """Random operations against a plain model: who holds what, and which content is findable."""

    SIZE = 6

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(self.SIZE)
        self.held: list[list[int]] = []  # block tables of imaginary sequences
        self.numbers: Iterator[int] = iter(range(1, 10_000))
        self.published: dict[int, int] = {}  # content number → block id, while it must be findable

    @precondition(lambda self: self.pool.num_free > 0)
    @rule(data=st.data())
    def allocate(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(1, self.pool.num_free))
        taken = self.pool.allocate(count)
        assert len(set(taken)) == count
        assert not set(taken) & {block for table in self.held for block in table}
        self.published = {n: b for n, b in self.published.items() if b not in taken}
        self.held.append(taken)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(data.draw(st.sampled_from(self.held))))
        number = next(self.numbers)
        if block not in self.published.values():
            self.published[number] = block
        self.pool.publish(block, *content(number))

    @precondition(lambda self: self.published)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.published)))
        found = self.pool.find(*content(number))
        assert found == self.published[number]
        self.pool.share([found])
        self.held.append([found])

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        self.pool.free(self.held.pop(data.draw(st.integers(0, len(self.held) - 1))))

    @rule()
    def reset_cache(self) -> None:
        self.pool.reset_cache()
        self.published = {}

    @invariant()
    def books_balance(self) -> None:
        self.pool.check_integrity()
        held = {block for table in self.held for block in table}
        assert self.pool.num_held == len(held)
        assert self.pool.num_free == self.SIZE - len(held)


PoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestPoolUnderRandomOperations = PoolMachine.TestCase


def test_least_recently_freed_cached_block_is_evicted_first() -> None:
    pool = BlockPool(2)
    first, second = pool.allocate(2)
    pool.publish(first, *content(1))
    pool.publish(second, *content(2))
    pool.free([second])
    pool.free([first])
    assert pool.allocate(1) == [second]
    assert pool.find(*content(1)) == first
    assert pool.find(*content(2)) is None


def test_of_one_sequence_the_deepest_block_is_evicted_first() -> None:
    pool = BlockPool(2)
    table = pool.allocate(2)
    for number, block in enumerate(table, start=1):
        pool.publish(block, *content(number))
    pool.free(table)
    assert pool.allocate(1) == [table[1]]


def test_equal_hash_with_other_tokens_or_other_prefix_is_a_miss() -> None:
    pool = BlockPool(1)
    (block,) = pool.allocate(1)
    pool.publish(block, *content(5))
    assert pool.find(*content(5)) == block
    assert pool.find(5, 4, b"other tokens") is None
    assert pool.find(5, 3, content(5)[2]) is None


def test_freeing_twice_is_caught() -> None:
    pool = BlockPool(1)
    table = pool.allocate(1)
    pool.free(table)
    with pytest.raises(AssertionError, match="freed twice"):
        pool.free(table)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 5), max_size=150))
def test_eviction_order_is_of_last_use_however_often_blocks_were_taken_again(uses) -> None:
    """Enough uses of so few blocks that the pool tidies its books several times."""
    pool = BlockPool(6)
    table = pool.allocate(6)
    for number, block in enumerate(table):
        pool.publish(block, *content(number + 1))
    pool.free(table)
    last_use = list(reversed(table))
    for block in uses:
        pool.share([block])
        pool.free([block])
        last_use.remove(block)
        last_use.append(block)
        pool.check_integrity()
    assert pool.allocate(6) == last_use
