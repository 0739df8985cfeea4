"""Which running rows make way for a client that waits and runs fewer rows than its equal share.

If no slot or too few blocks are free for the request that is served next, rows of the client that
runs most are preempted for it, newest first. A row is only preempted if its client runs more rows
than the waiting client does with one more, by weight, so that no two clients preempt each other in
turn; and only if the rows that may be preempted are enough. One row is enough for a slot; blocks
that other rows share are not counted. Pure: reads the queue, the slots and the blocks; Scheduler
calls it and preempts.
"""

from __future__ import annotations

from dataclasses import dataclass

from atom.model_engine.schedule.fair_queue import FairQueue
from atom.model_engine.schedule.lora_slots import LoraSlots
from atom.model_engine.schedule.row_blocks import RowBlocks
from atom.model_engine.schedule.row_table import RowTable
from atom.model_engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class MakeWay:
    """Propose to preempt `rows` so that `sequence` can be admitted, without blocks kept free for
    running rows. rows: empty if only those blocks are short."""

    sequence: Sequence
    rows: tuple[Sequence, ...]


def plan_way(
    waiting: FairQueue, rows: RowTable, blocks: RowBlocks, loras: LoraSlots
) -> MakeWay | None:
    """Plan which rows make way for the sequence that is served next. Returns None if none waits
    that runs fewer than its share, or if preempting would not be enough."""
    candidates = waiting.making_way()
    if not candidates:
        return None
    sequence = waiting.first
    if sequence.lora is not None and not loras.has_room(sequence.lora):
        return None
    missing = blocks.num_missing(sequence)
    preempted: list[Sequence] = []
    for row in candidates:
        if missing <= 0 and (preempted or rows.has_free_slot):
            break
        preempted.append(row)
        missing -= blocks.num_held_alone(row)
    if missing > 0 or not (preempted or rows.has_free_slot):
        return None
    return MakeWay(sequence, tuple(preempted))
