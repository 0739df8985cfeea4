"""Blocks that were used twice outlive scans, up to half of the pool, and counts always add up."""

from __future__ import annotations

import random

import pytest

from atom.model_engine.blocks.block_pool import BlockPool
from atom.model_engine.blocks.eviction_order import EvictionOrder, Policy
from atom.model_engine.blocks.protected_pool import ProtectedPool

SIZE = 4


def packed(number: int) -> bytes:
    return number.to_bytes(4 * SIZE, "little")


def cached(pool: BlockPool, number: int) -> int:
    """A block with this content that no request holds."""
    (block,) = pool.allocate(1)
    pool.publish(block, number, 0, packed(number))
    pool.free([block])
    return block


def use(pool: BlockPool, number: int) -> bool:
    """A request finds the block, if it is still there, and ends."""
    block = pool.find(number)
    if block is not None:
        pool.share([block])
        pool.free([block])
    return block is not None


@pytest.mark.parametrize(("kind", "survives"), [(ProtectedPool, True), (BlockPool, False)])
def test_a_scan_evicts_blocks_of_one_use_first(kind: type[BlockPool], survives: bool) -> None:
    pool = kind(8, SIZE)
    cached(pool, 1)
    assert use(pool, 1)
    assert use(pool, 1)
    for number in range(100, 200):
        cached(pool, number)
        pool.check_integrity()
    assert use(pool, 1) == survives


def test_at_most_half_of_the_blocks_are_protected() -> None:
    pool = ProtectedPool(8, SIZE)
    for number in range(1, 9):
        cached(pool, number)
        use(pool, number)
        use(pool, number)
    for number in range(100, 104):
        cached(pool, number)
    assert [number for number in range(1, 9) if pool.find(number) is not None] == [5, 6, 7, 8]


def test_a_block_of_one_use_is_not_protected() -> None:
    pool = ProtectedPool(8, SIZE)
    cached(pool, 1)
    use(pool, 1)
    for number in range(100, 108):
        cached(pool, number)
    assert pool.find(1) is None


@pytest.mark.parametrize("seed", range(20))
def test_the_pool_adds_up_under_anything(seed: int) -> None:
    draw = random.Random(seed)
    pool, held = ProtectedPool(12, SIZE), list[int]()
    for number in range(600):
        act = draw.random()
        if act < 0.5 and pool.num_free:
            (block,) = pool.allocate(1)
            if draw.random() < 0.8:
                pool.publish(block, draw.randrange(40), 0, packed(number))
            held.append(block)
        elif act < 0.8 and held:
            pool.free([held.pop(draw.randrange(len(held)))])
        elif act < 0.95:
            block = pool.find(draw.randrange(40))
            if block is not None:
                (pool.share if draw.random() < 0.7 else pool.hold)([block])
                held.append(block)
        elif act < 0.98:
            pool.forget(draw.sample(range(12), 3))
        else:
            pool.reset_cache()
        pool.check_integrity()
    pool.free(held)
    assert pool.num_free == 12


@pytest.mark.parametrize("policy", ["lru", "protected"])
@pytest.mark.parametrize("seed", range(10))
def test_an_order_evicts_what_a_list_says(policy: Policy, seed: int) -> None:
    """Beside a plain list of both halves, searched each time."""
    draw, size = random.Random(seed), 10
    order = EvictionOrder(size, policy)
    others, protected, uses = list[int](), list[int](), dict[int, int]()
    for _ in range(800):
        key, act = draw.randrange(16), draw.random()
        inside = key in others or key in protected
        assert (key in order) == inside
        if act < 0.4 and not inside:
            order.add(key)
            if policy == "protected" and uses.get(key, 0) >= 2:
                protected.append(key)
                if len(protected) > size // 2:
                    uses[protected[0]] = 0
                    others.append(protected.pop(0))
            else:
                others.append(key)
        elif act < 0.7 and inside:
            order.use(key)
            uses[key] = uses.get(key, 0) + 1
            order.remove(key)
            (others if key in others else protected).remove(key)
        elif act < 0.9 and len(order):
            first = (others or protected).pop(0)
            assert order.pop() == first
            uses[first] = 0
        elif act < 0.95:
            order.forget(key)
            uses[key] = 0
            for half in (others, protected):
                if key in half:
                    half.remove(key)
        assert list(order) == others + protected
