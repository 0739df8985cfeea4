"""The block pool keeps its books whatever is done to it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from numpy.typing import NDArray

from atom.model_engine.blocks.block_pool import BlockPool
from tests.support.random_search import examples

BLOCK_SIZE = 2


def tokens(number: int) -> NDArray[np.int32]:
    return np.array([[number, -number]], dtype=np.int32)


def publish(pool: BlockPool, block: int, number: int) -> None:
    """Content of which hash, hash before it and tokens are different for every number."""
    pool.publish(block, number, number - 1, tokens(number).tobytes())


def find(pool: BlockPool, number: int) -> int | None:
    block = pool.find(number)
    if block is None or not pool.count_proven([block], [number - 1], tokens(number).tobytes()):
        return None
    return block


class PoolMachine(RuleBasedStateMachine):
    """Random operations against a plain model: who holds what, and which content is findable."""

    SIZE = 6

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(self.SIZE, BLOCK_SIZE)
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
        if block not in self.published.values():
            number = next(self.numbers)
            self.published[number] = block
            publish(self.pool, block, number)

    @precondition(lambda self: self.published and self.held)
    @rule(data=st.data())
    def publish_what_is_known(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(data.draw(st.sampled_from(self.held))))
        if block not in self.published.values():
            publish(self.pool, block, data.draw(st.sampled_from(sorted(self.published))))

    @precondition(lambda self: self.published)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.published)))
        found = find(self.pool, number)
        assert found == self.published[number]
        self.pool.share([found])
        self.held.append([found])

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        self.pool.free(self.held.pop(data.draw(st.integers(0, len(self.held) - 1))))

    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        blocks = data.draw(st.lists(st.integers(0, self.SIZE - 1), unique=True))
        told: dict[int, int] = {}
        self.pool.evicted = lambda ids, hashes: told.update(zip(hashes, ids, strict=True))
        self.pool.forget(blocks)
        self.pool.evicted = None
        assert told == {n: b for n, b in self.published.items() if b in blocks}
        self.published = {n: b for n, b in self.published.items() if b not in blocks}
        assert all(find(self.pool, number) is None for number in told)

    @rule()
    def reset_cache(self) -> None:
        self.pool.reset_cache()
        self.published = {}

    @invariant()
    def books_balance(self) -> None:
        self.pool.check_integrity()
        held = {block for table in self.held for block in table}
        assert self.pool.num_referenced == len(held)
        assert self.pool.num_free == self.SIZE - len(held)


PoolMachine.TestCase.settings = settings(
    max_examples=examples(12, more=100), stateful_step_count=30, deadline=None
)
TestPoolUnderRandomOperations = PoolMachine.TestCase


def test_least_recently_freed_cached_block_is_evicted_first() -> None:
    pool = BlockPool(2, BLOCK_SIZE)
    first, second = pool.allocate(2)
    publish(pool, first, 1)
    publish(pool, second, 2)
    pool.free([second])
    pool.free([first])
    assert pool.allocate(1) == [second]
    assert find(pool, 1) == first
    assert find(pool, 2) is None


def test_of_one_sequence_the_deepest_block_is_evicted_first() -> None:
    pool = BlockPool(2, BLOCK_SIZE)
    table = pool.allocate(2)
    for number, block in enumerate(table, start=1):
        publish(pool, block, number)
    pool.free(table)
    assert pool.allocate(1) == [table[1]]


def test_equal_hash_with_other_tokens_or_other_prefix_is_a_miss() -> None:
    pool = BlockPool(3, BLOCK_SIZE)
    table = pool.allocate(3)
    known = np.arange(6, dtype=np.int32).reshape(3, BLOCK_SIZE)
    pool.publish_all(table, [1, 2**64 - 1, 3, 4], known)
    found = [block for hash_ in (2**64 - 1, 3, 4) if (block := pool.find(hash_)) is not None]
    assert found == table
    parents = [1, 2**64 - 1, 3]
    assert pool.count_proven(table, parents, known.tobytes()) == 3
    assert pool.count_proven(table, [1, 2**64 - 2, 3], known.tobytes()) == 1
    for wrong in range(3):
        other = known.copy()
        other[wrong, 1] += 1
        assert pool.count_proven(table, parents, other.tobytes()) == wrong


def test_of_blocks_published_together_only_new_content_is_findable_there() -> None:
    pool = BlockPool(8, BLOCK_SIZE)
    publish(pool, *pool.allocate(1), 12)
    table = pool.allocate(6)
    pool.publish_all(table, list(range(10, 17)), np.concatenate([tokens(n) for n in range(11, 17)]))
    assert [find(pool, number) for number in range(11, 17)] == [1, 0, 3, 4, 5, 6]
    pool.check_integrity()


def test_freeing_twice_is_caught() -> None:
    pool = BlockPool(1, BLOCK_SIZE)
    table = pool.allocate(1)
    pool.free(table)
    with pytest.raises(AssertionError, match="freed twice"):
        pool.free(table)


@settings(max_examples=examples(24), deadline=None)
@given(st.lists(st.integers(0, 5), max_size=150))
def test_eviction_order_is_of_last_use_however_often_blocks_were_taken_again(uses) -> None:
    """Enough uses of so few blocks that the pool tidies its books several times."""
    pool = BlockPool(6, BLOCK_SIZE)
    table = pool.allocate(6)
    for number, block in enumerate(table):
        publish(pool, block, number + 1)
    pool.free(table)
    last_use = list(reversed(table))
    for block in uses:
        pool.share([block])
        pool.free([block])
        last_use.remove(block)
        last_use.append(block)
        pool.check_integrity()
    assert pool.allocate(6) == last_use
