"""KVTiers: the tiers of the KV cache below the device: the host's memory and, behind it, files.

It decides which blocks are copied to the host, which pages are read back for a request, and when.
Writing never delays a step: a bounded number of pages is under way, and a block that is evicted
while there is no room is dropped. A drop leaves no hole, since a prefix is found only as far as it
is whole.

A request whose prefix is being read is parked: it holds the blocks of the prefix, and is in no
queue and no batch. Once the pages are in the device's prefix cache, it joins the queue again at its
place, and is a request like any other. Policy alone: it knows no tensors, and a PageMover carries
the moves out. Owned by Scheduler; StepPipeline calls `take_in` and `send` once a step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from atom.model_engine.block_manager import BlockManager, PrefixMatch
from atom.model_engine.blocks.block_log import Medium, Stored
from atom.model_engine.blocks.host_pages import HostPages, Page
from atom.model_engine.kv_disk.disk_moves import DiskStore
from atom.model_engine.page_moves import Move, PageMover
from atom.model_engine.schedule.tiers.host_places import HostPlaces
from atom.model_engine.schedule.tiers.tier_files import TierFiles
from atom.model_engine.schedule.tiers.tier_reading import Load, TierSetup
from atom.model_engine.schedule.tiers.tier_reads import TierReads
from atom.model_engine.sequence import Sequence as Request

__all__ = ["KVTiers", "TierSetup"]

_MUCH = 2  # times that computing is faster, before pages are not written


@dataclass(frozen=True, slots=True)
class _Save:
    """A page on its way to a place of `pages`. told: the event of its arrival, if events are
    logged."""

    pages: HostPages
    page: Page
    place: int
    move: Move
    told: Stored | None = None


@dataclass(slots=True)
class _Moves:
    """The moves of one call. epoch: of the caches when they were decided."""

    epoch: int
    number: int = 0
    saves: list[_Save] = field(default_factory=list)
    loads: list[Load] = field(default_factory=list)


class KVTiers:
    def __init__(
        self,
        blocks: BlockManager,
        setup: TierSetup,
        mover: PageMover,
        store: DiskStore | None = None,
    ) -> None:
        """store: of files behind the host's memory; None without a disk."""
        self._blocks, self._setup, self._mover = blocks, setup, mover
        self._host = HostPlaces(blocks, setup.num_pages, setup.num_states, setup.policy)
        self._pages, self._states = self._host.pages, self._host.states
        self.counts = self._host.counts
        if store is not None:
            row_bytes = setup.page_bytes * setup.ranks
            self._host.files = TierFiles(store, blocks, self._pages, row_bytes)
        self._files = self._host.files
        self._reads = TierReads(blocks, self._host, setup)
        self._state_kind = len(blocks.groups)
        self._groups = np.zeros(blocks.pool.num_blocks, dtype=np.int16)  # of published blocks
        self._unwanted: set[int] = set()  # blocks behind a window, which no later token sees
        self._candidates: deque[int] = deque()  # blocks to be written, oldest first
        self._under_way: set[int] = set()  # hashes of the pages that are being written
        self._pages_writing = self._states_writing = 0
        self._next = _Moves(0)
        self._sent: deque[_Moves] = deque()
        self._number = 0
        growing = sum(group.window is None for group in blocks.groups)
        self._block_bytes = max(1, growing) * setup.page_bytes
        self._seconds_a_token = 0.0  # of computing prompts, as it was told last
        blocks.attach(self)
        if setup.write == "back":
            blocks.pool.unused = self._now_unused

    # ---- events of blocks ----------------------------------------------------------------------

    def published(self, group: int, block_ids: Sequence[int]) -> None:
        """Note blocks of a group that were computed or read, and may be written from now on."""
        if self._state_kind > 1:
            self._groups[block_ids] = group
        if self._unwanted:
            self._unwanted.difference_update(block_ids)
        if self._setup.write == "through":
            self._candidates.extend(block_ids)

    def _now_unused(self, block_ids: list[int]) -> None:
        """Note blocks that no request holds any more, the deepest of a sequence first. The
        beginning is written first: the rest is useless without it."""
        self._candidates.extend(reversed(block_ids))

    def left_window(self, block_ids: Sequence[int]) -> None:
        """Note blocks that a row no longer sees, which are about to be freed: of a group with a
        window only the last blocks of a sequence are kept."""
        self._unwanted.update(block_ids)

    def evicted(self, block_ids: Sequence[int], hashes: Sequence[int]) -> None:
        """Write blocks that are being evicted and were not written yet, as far as there is room.
        The moves are made before the next step, which may overwrite the blocks."""
        for block_id, hash_ in zip(block_ids, hashes, strict=True):
            if block_id in self._unwanted:
                self._unwanted.discard(block_id)
            elif self._room > 0:
                self._write(block_id, hash_)
            elif not self._is_kept(hash_):
                self.counts.dropped_queue += 1

    def retired(self, number: int) -> None:
        """Forget the pages of an adapter that is unloaded."""
        self._host.forget_lora(number)

    # ---- reading -------------------------------------------------------------------------------

    def begin(self, sequence: Request, found: PrefixMatch, seconds_a_token: float) -> bool:
        """Begin to read the pages of a sequence that could be admitted now: see
        `TierReads.begin`."""
        self._seconds_a_token = seconds_a_token
        return self._reads.begin(sequence, found, seconds_a_token)

    # ---- a step --------------------------------------------------------------------------------

    @property
    def has_news(self) -> bool:
        """Return whether `take_in` or `send` has something to do now."""
        if self._reads.done or self._reads.loads or self._next.saves:
            return True
        if self._files is not None and self._files.has_news:
            return True
        if self._candidates and self._room > 0:
            return True
        return bool(self._sent) and self._mover.moved_number() >= self._sent[0].number

    def check_integrity(self) -> list[int]:
        """Raise AssertionError if the places of pages do not add up. Returns the blocks that parked
        requests hold, each as often as it is held."""
        fetches = [] if self._files is None else self._files.fetches
        saves = [save.pages is self._pages for each in self._sent for save in each.saves]
        saves += [save.pages is self._pages for save in self._next.saves]
        coming = sum(each.pages_coming for each in fetches)
        self._pages.check_integrity(sum(saves) + coming)
        states = sum(each.state_is_coming for each in fetches)
        self._states.check_integrity(len(saves) - sum(saves) + states)
        readings = [load.reading for each in self._sent for load in each.loads]
        readings += [load.reading for load in self._reads.loads]
        readings += [each.reading for each in fetches if each.reading is not None]
        return [block for each in dict.fromkeys(readings) for _, block in each.blocks]

    def totals(self) -> dict[str, Any]:
        """Return the tiers' counters by their names in StatsBody."""
        used = self._pages.num_used + self._states.num_used
        found = self.counts.totals(used, self._setup.num_pages + self._setup.num_states)
        if self._files is not None:
            found |= self.counts.disk_totals(self._files.totals(), self._files.dropped)
        return found

    @property
    def wake_fds(self) -> list[int]:
        """Return the descriptors that are readable when files have been moved."""
        return [] if self._files is None else [self._files.wake_fd]

    def note_adapter(self, number: int, digest: str) -> None:
        """Note the digest of an adapter's files, by the number that requests select it with."""
        if self._files is not None:
            self._files.names.note_adapter(number, digest)

    def retarget(self, weights: str) -> None:
        """Keep files of other weights from now on. weights: the path of a checkpoint."""
        if self._files is not None:
            self._files.retarget(weights)

    def close(self) -> None:
        """Complete the writes to files that were begun."""
        if self._files is not None:
            self._files.close()

    def take_in(self, now: float) -> list[int]:
        """Process the moves that are complete; return the requests that are parked no longer. now:
        in seconds, of any clock."""
        number, reads = self._mover.moved_number(), self._reads
        reads.now = now
        if self._sent and self._sent[0].number <= number:
            self._host.note_moved(self._mover.move_totals())  # before a probe among them ends
        while self._sent and self._sent[0].number <= number:
            moves = self._sent.popleft()
            is_current = moves.epoch == reads.epoch
            for save in moves.saves:
                self._keep(save, is_current=is_current)
            for load in moves.loads:
                rows = [move.row for move in reads.moves_of(load)]
                spoiled = self._mover.spoiled_rows(moves.number, rows)
                self.counts.spoiled += len(spoiled)
                reads.join(load, spoiled, is_current=is_current)
        if self._files is not None:
            arrived, late = self._files.take_in()
            for each in arrived:
                reads.arrive(each)
            for fetch in late:
                reads.abandon(fetch)
        done, reads.done = reads.done, []
        return done

    def send(self) -> None:
        """Send the moves that were decided since the last call, before the step that may overwrite
        their blocks."""
        while self._candidates and self._room > 0:
            block_id = self._candidates.popleft()
            hash_ = self._blocks.pool.hash_of(block_id)
            if hash_ is not None and block_id not in self._unwanted:
                self._write(block_id, hash_)
        if self._files is not None:
            self._files.send()
        moves, reads = self._next, self._reads
        moves.loads, reads.loads = reads.loads, []
        if not moves.saves and not moves.loads:
            return
        self._number += 1
        moves.number, self._next = self._number, _Moves(reads.epoch)
        self._sent.append(moves)
        loads = [move for load in moves.loads for move in reads.moves_of(load)]
        self._mover.move_pages(self._number, [save.move for save in moves.saves], loads)

    def wait(self) -> bool:
        """Wait for the oldest moves that are under way, or for files that a request waits for.
        Returns False if there are none."""
        if self._sent:
            self._mover.wait_moved(self._sent[0].number)
            return True
        return self._files is not None and self._files.wait()

    def settle(self) -> None:
        """Cancel the moves that were not sent, and wait for the others: the device's memory is
        about to be given back. Files are read on, into the host."""
        self._cancel()
        if self._files is not None:
            for fetch in self._files.fetches:
                self._reads.abandon(fetch)
        if self._sent:
            self._mover.wait_moved(self._number)
            self._reads.done = self.take_in(self._reads.now)
        self._reads.cancel()

    def clear(self, *, keep_pages: bool = False, keep_files: bool = False) -> None:
        """Forget which blocks are to be written and, unless they are kept, all pages and files. The
        moves that are under way make nothing findable."""
        self._cancel()
        self._reads.epoch += 1
        self._next.epoch = self._reads.epoch
        self._candidates.clear()
        self._unwanted.clear()
        self._under_way.clear()
        if self._files is not None:
            self._files.clear(keep_pages=keep_pages, keep_files=keep_files)
        if not keep_pages:
            self._host.clear()

    def _cancel(self) -> None:
        """Drop the moves that were not sent."""
        moves, self._next = self._next, _Moves(self._reads.epoch)
        for save in moves.saves:
            save.pages.give_back(save.place)
            self._end_writing(save, is_current=True)
        self._reads.cancel()

    # ---- writing -------------------------------------------------------------------------------

    @property
    def _room(self) -> int:
        """Return how many more pages may be under way."""
        return self._setup.queue_pages - self._pages_writing

    @property
    def _is_cheaper_computed(self) -> bool:
        """Predict whether a page would never be read, since its tokens are computed much faster;
        False while a speed is unknown, or is to be measured again."""
        compute_seconds = _MUCH * self._blocks.block_size * self._seconds_a_token
        if not 0 < compute_seconds < self._host.speed.seconds_for(self._block_bytes):
            return False
        return not self._reads.may_probe()  # which needs pages that were written lately

    def _is_kept(self, hash_: int) -> bool:
        return hash_ in self._under_way or self._pages.holds(hash_)

    def _write(self, block_id: int, hash_: int) -> None:
        """Begin to write a block, and the checkpoint of states at its end, as far as the host lacks
        them. A checkpoint within an interval is not written: a prefix that is read ends at none."""
        lora = self._blocks.lora_of(block_id)
        if self._blocks.is_retired(lora):
            return
        if self._is_cheaper_computed:
            self.counts.dropped_cheap += 1
            return
        parent, packed = self._blocks.pool.contents(block_id)
        page = Page(int(self._groups[block_id]), hash_, parent, packed, lora)
        if not self._is_kept(hash_):
            place = self._host.take(self._pages)
            if place is None:
                return
            move = Move(page.group, block_id, place)
            told = self._blocks.told_of(page, Medium.CPU)
            self._under_way.add(hash_)
            self._next.saves.append(_Save(self._pages, page, place, move, told))
            self._pages_writing += 1
        checkpoints = self._blocks.checkpoints
        checkpoint = None if checkpoints is None else checkpoints.regular_place_of(block_id)
        if checkpoint is None or self._states.holds(hash_):
            return
        if self._states_writing >= self._setup.queue_states:
            self.counts.dropped_queue += 1
            return
        place = self._host.take(self._states)
        if place is not None:
            move = self._host.state_move(checkpoint, place)
            self._next.saves.append(_Save(self._states, page, place, move))
            self._states_writing += 1

    def _keep(self, save: _Save, *, is_current: bool) -> None:
        """Make a page findable that was written."""
        self._end_writing(save, is_current=is_current)
        if not is_current or self._blocks.is_retired(save.page.lora):
            save.pages.give_back(save.place)
        elif save.pages.put(save.place, save.page):
            if save.told is not None:
                self._blocks.log(save.told)
            if self._files is not None:
                self._files.kept(save.pages, save.place)

    def _end_writing(self, save: _Save, *, is_current: bool) -> None:
        if save.pages is self._states:
            self._states_writing -= 1
            return
        self._pages_writing -= 1
        if is_current:
            self._under_way.discard(save.page.hash)
