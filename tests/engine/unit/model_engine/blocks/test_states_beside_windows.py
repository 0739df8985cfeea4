"""The longest prefix of a model with states and windows ends at a checkpoint that every group can
go on from, whatever was evicted; and tiers keep the blocks that a checkpoint needs."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from atom.model_engine.block_manager import BlockManager
from atom.model_engine.blocks.state_checkpoints import StateCheckpoints
from atom.sizing.mask_rule import CAUSAL, MaskRule, sliding_window

SIZE, EVERY, BLOCKS = 4, 3, 120
MASKS = {
    "beside dense": (CAUSAL, sliding_window(9)),
    "windows alone": (sliding_window(6), sliding_window(17)),
    "windows first": (sliding_window(5), CAUSAL, sliding_window(13)),
}


def manager_of(masks: Sequence[MaskRule]) -> BlockManager:
    checkpoints = StateCheckpoints(20, EVERY)
    return BlockManager(
        BLOCKS, SIZE, enable_prefix_caching=True, masks=masks, checkpoints=checkpoints
    )


def publish(manager: BlockManager, tokens: Any) -> list[list[int]]:
    """Compute and give back a sequence's blocks of every group; the blocks, by group."""
    count = len(tokens) // SIZE
    tables = tuple(manager.pool.allocate(count) for _ in manager.groups)
    manager.publish(tables, tokens[: count * SIZE], 0, manager.root_of("", None))
    for table in tables:
        manager.pool.free(table)
    return list(tables)


def longest(manager: BlockManager, tokens: Any) -> int:
    """Find the longest prefix by trying every length."""
    chain = [manager.root_of("", None)]
    packed = [tokens[at : at + SIZE].tobytes() for at in range(0, len(tokens) - SIZE + 1, SIZE)]
    for at in range(len(packed)):
        chain.append(manager.chain(tokens[at * SIZE : (at + 1) * SIZE], chain[-1]))
    assert manager.checkpoints is not None

    def block(group: int, index: int) -> int | None:
        mark = manager.marks[group]
        return manager.pool.find_proven(chain[index + 1] ^ mark, chain[index] ^ mark, packed[index])

    for end in range((len(tokens) - 1) // SIZE // EVERY * EVERY, 0, -EVERY):
        last = block(0, end - 1)
        if last is None or manager.checkpoints.place_of(last) is None:
            continue
        if all(
            block(number, index) is not None
            for number, group in enumerate(manager.groups)
            for index in range(end - group.matched_blocks(end, SIZE), end)
        ):
            return end
    return 0


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("seed", range(5))
def test_a_prefix_ends_at_a_checkpoint_that_every_group_goes_on_from(kind: str, seed: int) -> None:
    draw, manager = random.Random(seed), manager_of(MASKS[kind])
    assert manager.checkpoints is not None
    texts = [[draw.randrange(9) for _ in range(70)] for _ in range(3)]
    found = set()
    for _ in range(60):
        text = draw.choice(texts)
        tokens = np.array([*text[: draw.randrange(8, 70)], draw.randrange(9)], dtype=np.int32)
        expected = longest(manager, tokens)
        match = manager.match_prefix(tokens)
        assert match.num_blocks == expected
        for group, ids in zip(manager.groups, match.block_ids, strict=True):
            assert len(ids) == group.matched_blocks(expected, SIZE)
        found.add(expected)
        if expected:
            assert manager.checkpoints.place_of(match.block_ids[0][-1]) is not None
        count = min(len(tokens) // SIZE, manager.num_free_blocks // len(manager.groups))
        tables = publish(manager, tokens[: count * SIZE])
        for end in range(EVERY, count + 1, EVERY):
            hash_ = manager.pool.hash_of(tables[0][end - 1])
            if hash_ is not None and draw.random() < 0.6:
                place = manager.checkpoints.take()
                if place is not None:
                    manager.checkpoints.keep(tables[0][end - 1], place)
    assert len(found) > 2, "prefixes of several lengths"


class Tier:
    """Records the blocks that its cache has no use for any more."""

    def __init__(self) -> None:
        self.useless: list[int] = []

    def left_window(self, block_ids: Sequence[int]) -> None:
        self.useless += block_ids

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


@pytest.mark.parametrize("window", [2, 5, 6, 9, 13, 14, 60])
def test_a_tier_keeps_the_window_before_each_checkpoint(window: int) -> None:
    manager, tier = manager_of((CAUSAL, sliding_window(window))), Tier()
    manager.attach(tier)
    table = manager.pool.allocate(4 * EVERY)
    for first in range(0, len(table), 2):
        manager.free_left(1, first, table[first : first + 2])
    needed = {
        index
        for end in range(EVERY, len(table) + 1, EVERY)
        for index in range(end - manager.groups[1].matched_blocks(end, SIZE), end)
    }
    assert tier.useless == [block for at, block in enumerate(table) if at not in needed]
