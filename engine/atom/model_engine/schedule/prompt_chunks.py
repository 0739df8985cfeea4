"""PromptChunks: how many tokens of which prompts a step computes.

A step's prompt tokens go to prompts by age. While prompts of several clients are being computed,
half of them go first to the shortest prompt of each client, so that a short prompt does not wait
for the end of another client's long one, and the oldest prompt still gets half of each step.
Scheduler admits the prompts that begin. Used by Scheduler only.
"""

from __future__ import annotations

from collections import abc
from collections.abc import Callable, Hashable

from atom.model_engine.schedule.batch_builder import BatchBuilder, Chunk
from atom.model_engine.schedule.fair_queue import FairQueue
from atom.model_engine.schedule.images.image_steps import ImageSteps
from atom.model_engine.schedule.row_blocks import RowBlocks
from atom.model_engine.schedule.row_table import RowTable
from atom.model_engine.schedule.state_saves import StateSaves
from atom.model_engine.sequence import NO_SLOT, Sequence

Clients = abc.Sequence[Hashable]


class PromptChunks:
    images: ImageSteps | None = None  # of models that read images
    undivided = False  # of encoders: a step computes the whole of a prompt, or none of it
    _room = 0  # tokens that the step can still have
    _waits = False  # a row needs more of them at once than there are

    def __init__(
        self,
        rows: RowTable,
        row_blocks: RowBlocks,
        batches: BatchBuilder,
        saves: StateSaves | None,
        threshold: int,
    ) -> None:
        """threshold: most tokens of one prompt in a step; 0 for no such bound."""
        self._rows = rows
        self._row_blocks = row_blocks
        self._batches = batches
        self._saves = saves
        self._threshold = threshold

    def begin_step(self, room: int) -> list[Chunk]:
        """Return the list of a step's chunks, none so far. The step has at most `room` tokens of
        prompts: the budgets of the other calls may be less, and are exceeded by tokens that cannot
        be divided."""
        self._room, self._waits = room, False
        return []

    def share(self, slots: list[int], clients: Clients, budget: int) -> list[tuple[int, int]]:
        """List (slot, most tokens) for the prompts of `slots`, oldest first. clients: of each slot;
        empty if all are one client's."""
        lefts = [self.left(slot) for slot in slots]
        return list(zip(slots, share_tokens(lefts, clients, budget), strict=True))

    def left(self, slot: int) -> int:
        """Count the tokens of a row's prompt that a step without a budget would compute, if there
        are blocks for them."""
        left = int(self._rows.num_given[slot] - self._rows.num_computed[slot])
        left = min(left, self._threshold or left)
        return left if self._saves is None or left <= 0 else self._saves.cut(slot, left)

    def add(self, chunks: list[Chunk], slot: int, most: int) -> int:
        """Append as much of the row as `most`, `left` and blocks allow; how much that is."""
        left = self.left(slot)
        count = min(left, most, self._room)
        if self.undivided and 0 < count < left:
            count = left if left <= self._room else 0
            self._waits |= count == 0
        windows = self._row_blocks.windows
        if count > 0 and self.images is not None:
            count = self._with_images(self.images, slot, count)
        elif count > 0 and windows is not None:
            count = windows.fitting(slot, count)
        if count > 0 and windows is not None:
            appends = windows.append_chunk(slot, count)
            if len(appends):
                self._batches.append_blocks(appends)
        if count > 0:
            chunks.append((slot, count))
            self._room -= count
        return count

    def _with_images(self, images: ImageSteps, slot: int, count: int) -> int:
        """Return the number of tokens that the step computes instead of `count`: it divides no
        image whose tokens see each other both ways, and has outputs of all its images."""
        whole = images.whole(slot, count, self._room)
        if self._row_blocks.windows is not None:
            fitting = self._row_blocks.windows.fitting(slot, whole)
            if fitting < whole:
                whole = images.whole(slot, fitting, fitting)
        # Others that begin would soon decode, and leave even less room.
        self._waits |= whole == 0
        return images.cut(slot, whole)

    def begin_beside(
        self, slots: list[int], waiting: FairQueue, budget: int, admit: Callable[[Sequence], bool]
    ) -> None:
        """Admit clients that wait beside others' prompts (`slots`, to which admitted ones are
        added) and of which no prompt is computed."""
        while budget > 0 and self._rows.has_free_slot and waiting.is_beside(slots):
            sequence = waiting.first
            if not admit(sequence):
                break
            if sequence.slot != NO_SLOT:
                budget -= self.left(sequence.slot)

    def begin(
        self,
        chunks: list[Chunk],
        waiting: FairQueue,
        budget: int,
        admit: Callable[[Sequence], bool],
    ) -> None:
        """Append the first chunks of waiting sequences, as far as the token budget allows. One that
        `admit` gives no slot is parked, and does not delay the next ones."""
        if self._waits:
            return
        if self._rows.has_free_slot:
            waiting.settle()
        while budget > 0 and waiting and self._rows.has_free_slot:
            sequence = waiting.first
            if not admit(sequence):
                break
            if sequence.slot == NO_SLOT:
                continue
            count = self.add(chunks, sequence.slot, budget)
            if not count and (self.undivided or self.images is not None):
                break  # an image or a whole prompt finds no room, nor would one behind it
            budget -= count

    def unfinished(self, slots: list[int]) -> list[int]:
        """Return the rows whose prompts have tokens left to compute."""
        computed, given = self._rows.num_computed, self._rows.num_given
        return [slot for slot in slots if computed[slot] < given[slot]]


def share_tokens(lefts: list[int], clients: Clients, budget: int) -> list[int]:
    """Share `budget` tokens out among prompts, oldest first. lefts: tokens that each may take.
    clients: of each prompt; empty if all are one client's."""
    counts, budget = [0] * len(lefts), max(budget, 0)
    if len(set(clients)) > 1:
        shortest: dict[Hashable, int] = {}
        for index, client in enumerate(clients):
            if lefts[index] < lefts[shortest.setdefault(client, index)]:
                shortest[client] = index
        half = budget // 2
        for index in sorted(shortest.values(), key=lambda each: (lefts[each], each)):
            counts[index] = min(lefts[index], half)
            half -= counts[index]
    budget -= sum(counts)
    for index, left in enumerate(lefts):
        more = min(left - counts[index], budget)
        counts[index] += more
        budget -= more
    return counts
