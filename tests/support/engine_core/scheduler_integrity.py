"""What must be true of a scheduler between any two calls: its queues, rows and blocks agree.

Changes nothing. Called by tests after every step; it walks everything.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from atom.model_engine.schedule.row_table import NO_REQUEST
from atom.model_engine.scheduler import Scheduler
from atom.model_engine.sequence import NO_SLOT, Sequence, SequenceStatus


def check_integrity(scheduler: Scheduler) -> None:
    """Raise AssertionError if any book does not balance."""
    scheduler.blocks.pool.check_integrity()
    running = [sequence for sequence in scheduler.rows.sequences if sequence is not None]
    _check_queues(scheduler)
    _check_rows(scheduler)
    _check_images(scheduler)
    references = Counter(block for sequence in running for block in _held_blocks(sequence))
    if scheduler.tiers is not None:
        references.update(scheduler.tiers.check_integrity())
    for sequence in running:
        held = _held_blocks(sequence)
        assert len(set(held)) == len(held), "a block twice in a row"
    pool = scheduler.blocks.pool
    counts = enumerate(pool._ref_counts)
    assert {block: count for block, count in counts if count} == references, (
        "blocks are held that no running sequence lists, or the other way round"
    )


def _held_blocks(sequence: Sequence) -> list[int]:
    tables = zip(sequence.block_tables, sequence.first_blocks, strict=True)
    return [block for table, first in tables for block in table[first:]]


def _check_tables(scheduler: Scheduler, sequence: Sequence) -> None:
    """Every token that is computed has a block, or is seen by none that is still to come."""
    rows, size, slot = scheduler.rows, scheduler.blocks.block_size, sequence.slot
    computed, given = int(rows.num_computed[slot]), int(rows.num_given[slot])
    room = int(rows.room[slot]) // size
    tables = zip(scheduler.blocks.groups, sequence.block_tables, sequence.first_blocks, strict=True)
    for group, table, first in tables:
        assert computed <= len(table) * size, "tokens computed into no block"
        assert len(table) <= room
        if group.window is None:
            assert (len(table), first) == (room, 0)
        else:
            assert len(table) == room or computed < given
            assert first * size <= max(0, computed - group.window + 1), "a block left too early"
            assert first <= sequence.num_published or not scheduler.blocks.enable_prefix_caching


def _check_queues(scheduler: Scheduler) -> None:
    running = [sequence for sequence in scheduler.rows.sequences if sequence is not None]
    waiting = list(scheduler.waiting)
    assert len(running) == scheduler.num_running
    assert len(waiting) == len(scheduler.waiting)
    assert all(sequence.status is SequenceStatus.RUNNING for sequence in running)
    for sequence in waiting:
        assert sequence.status is SequenceStatus.WAITING
        assert sequence.slot == NO_SLOT
        assert not sequence.block_tables, "it waits and holds memory"


def _check_images(scheduler: Scheduler) -> None:
    """The memory of images is that of all open requests, and rows alone hold their outputs."""
    images = scheduler.images
    if images is None:
        return
    open_images = [each.images for each in scheduler._sequences.values() if each.images]
    assert scheduler.stats().image_bytes == sum(each.pixel_bytes for each in open_images)
    running = [each for each in scheduler.rows.sequences if each is not None and each.images]
    assert images._held.keys() <= {each.slot for each in running}, "an image that no row needs"


def _check_rows(scheduler: Scheduler) -> None:
    rows, size = scheduler.rows, scheduler.blocks.block_size
    for slot, sequence in enumerate(rows.sequences):
        if sequence is None:
            assert rows.request_ids[slot] == NO_REQUEST
            continue
        assert sequence.slot == slot
        assert rows.request_ids[slot] == sequence.id
        given, computed = int(rows.num_given[slot]), int(rows.num_computed[slot])
        tokens, total = int(rows.num_tokens[slot]), int(rows.last_position[slot]) + 1
        assert sequence.num_prompt_tokens <= given <= tokens <= total == sequence.max_total_tokens
        # All but the newest token are computed, unless some were given and are still to come.
        assert computed == tokens - 1 or computed < given
        _check_tables(scheduler, sequence)
        assert sequence.num_published * size <= computed
        assert rows.next_full[slot] == (sequence.num_published + 1) * size
        prompt = sequence.prompt_token_ids
        assert np.array_equal(rows.token_ids[slot, : len(prompt)], prompt), "the prompt changed"
