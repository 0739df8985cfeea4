"""Places of checkpoints: each is free, being made, or some block's."""

from __future__ import annotations

import pytest

from atom.model_engine.block_manager import BlockManager
from atom.model_engine.blocks.block_pool import BlockPool
from atom.model_engine.blocks.state_checkpoints import StateCheckpoints


def taken(checkpoints: StateCheckpoints) -> int:
    place = checkpoints.take()
    assert place is not None
    return place


def test_no_place_is_taken_while_all_are_being_made() -> None:
    checkpoints = StateCheckpoints(2, interval_blocks=1)
    assert {taken(checkpoints), taken(checkpoints)} == {0, 1}
    assert checkpoints.take() is None


def test_the_one_used_least_lately_makes_room() -> None:
    checkpoints = StateCheckpoints(2, interval_blocks=1)
    for block in (10, 11):
        checkpoints.keep(block, taken(checkpoints))
    first = checkpoints.use(10)
    assert taken(checkpoints) != first
    assert checkpoints.last_of([10]) == 1
    assert checkpoints.last_of([11]) == 0


def test_a_prefix_ends_at_its_last_checkpoint() -> None:
    checkpoints = StateCheckpoints(4, interval_blocks=2)
    for block in (21, 25):
        checkpoints.keep(block, taken(checkpoints))
    blocks = [20, 21, 22, 23, 24, 25, 26]
    assert [checkpoints.last_of(blocks[:end]) for end in range(8)] == [0, 0, 2, 2, 2, 2, 6, 6]


def test_a_second_one_of_a_block_is_given_back() -> None:
    checkpoints = StateCheckpoints(2, interval_blocks=1)
    one, other = taken(checkpoints), taken(checkpoints)
    checkpoints.keep(7, one)
    checkpoints.keep(7, other)
    assert checkpoints.use(7) == one
    assert taken(checkpoints) == other


def test_it_goes_with_its_block() -> None:
    checkpoints = StateCheckpoints(1, interval_blocks=1)
    pool = BlockManager(2, 4, enable_prefix_caching=True, checkpoints=checkpoints).pool
    assert isinstance(pool, BlockPool)
    (block,) = pool.allocate(1)
    pool.publish(block, 99, 0, bytes(16))
    checkpoints.keep(block, taken(checkpoints))
    pool.free([block])
    assert checkpoints.last_of([block]) == 1, "cached still"
    pool.allocate(2)
    assert checkpoints.last_of([block]) == 0
    assert checkpoints.take() is not None


def test_a_pinned_one_stays_although_others_are_taken() -> None:
    checkpoints = StateCheckpoints(2, interval_blocks=1)
    for block in (10, 11):
        checkpoints.keep(block, taken(checkpoints))
    pinned = checkpoints.pin(10)
    assert checkpoints.pin(10) == pinned, "by two readers"
    assert taken(checkpoints) != pinned
    assert checkpoints.take() is None
    checkpoints.unpin(pinned)
    assert checkpoints.take() is None
    checkpoints.unpin(pinned)
    assert taken(checkpoints) == pinned


@pytest.mark.parametrize("forget", ["clear", "evicted"])
def test_a_pinned_one_whose_block_is_forgotten_is_free_after_its_reader(forget: str) -> None:
    checkpoints = StateCheckpoints(1, interval_blocks=1)
    checkpoints.keep(10, taken(checkpoints))
    pinned = checkpoints.pin(10)
    if forget == "clear":
        checkpoints.clear()
    else:
        checkpoints.evicted([10])
    assert checkpoints.last_of([10]) == 0
    assert checkpoints.take() is None, "another engine reads it"
    checkpoints.unpin(pinned)
    assert not checkpoints._pins
    assert taken(checkpoints) == pinned


def test_one_within_an_interval_is_found_while_it_is_kept() -> None:
    checkpoints = StateCheckpoints(3, interval_blocks=2)
    checkpoints.keep(21, taken(checkpoints))
    checkpoints.keep(22, taken(checkpoints), between=True)
    blocks = [20, 21, 22, 23]
    assert [checkpoints.last_of(blocks[:end]) for end in range(5)] == [0, 0, 2, 3, 3]
    checkpoints.evicted([22])
    assert checkpoints.last_of(blocks) == 2
