"""KVTiers: the tier of the KV cache below the device, in the host's memory.

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
from typing import Any, Literal

import numpy as np

from atom.model_engine.block_manager import BlockManager, PrefixMatch
from atom.model_engine.blocks.block_log import Stored
from atom.model_engine.blocks.eviction_order import Policy
from atom.model_engine.blocks.host_pages import HostPages, Page
from atom.model_engine.blocks.tier_search import Caches, Missing, TierMatch, TierSearch
from atom.model_engine.page_moves import Move, PageMover
from atom.model_engine.schedule.tier_counts import TierCounts
from atom.model_engine.sequence import Sequence as Request

_MOST_READS = 2  # of one request, until it is admitted: its pages may be evicted meanwhile


@dataclass(frozen=True, slots=True)
class TierSetup:
    """The size and the rules of the host's tier. num_pages, num_states: rows of the host's memory
    for blocks and for checkpoints of states; page_bytes, state_bytes: of one of them, of a rank;
    min_tokens: a shorter rest of a prefix is computed; queue_pages, queue_states: most of each that
    are being written."""

    num_pages: int
    page_bytes: int
    queue_pages: int
    num_states: int = 0
    state_bytes: int = 0
    queue_states: int = 0
    min_tokens: int = 512
    policy: Policy = "lru"
    write: Literal["back", "through"] = "back"


@dataclass(frozen=True, slots=True)
class _Save:
    """A page on its way to a place of `pages`. told: the event of its arrival, if events are
    logged."""

    pages: HostPages
    page: Page
    place: int
    move: Move
    told: Stored | None = None


@dataclass(frozen=True, slots=True)
class _State:
    """A checkpoint of states on its way to the device, from a place of the host."""

    page: Page
    place: int
    checkpoint: int


@dataclass(frozen=True, slots=True)
class _Load:
    """A prefix on its way to the device. blocks: all that it holds, each with its index; new: those
    of the missing pages, and pages: their identities. state: of its end, if that is read."""

    request: int
    missing: list[Missing]
    blocks: list[tuple[int, int]]
    new: list[int]
    pages: list[Page]
    state: _State | None
    lora_name: str | None

    @property
    def places(self) -> list[int]:
        """Return the places of the missing pages."""
        return [each.place for each in self.missing]


@dataclass(slots=True)
class _Moves:
    """The moves of one call. epoch: of the caches when they were decided."""

    epoch: int
    number: int = 0
    saves: list[_Save] = field(default_factory=list)
    loads: list[_Load] = field(default_factory=list)


class KVTiers:
    def __init__(self, blocks: BlockManager, setup: TierSetup, mover: PageMover) -> None:
        self._blocks, self._setup, self._mover = blocks, setup, mover
        self._pages = HostPages(setup.num_pages, setup.policy)
        self._states = HostPages(setup.num_states, setup.policy)
        states = None if blocks.checkpoints is None else self._states
        caches = Caches(blocks.pool, self._pages, blocks.checkpoints, states)
        self._search = TierSearch(caches, blocks.groups, blocks.marks, blocks.block_size)
        self._state_kind = len(blocks.groups)
        self._groups = np.zeros(blocks.pool.num_blocks, dtype=np.int16)  # of published blocks
        self._unwanted: set[int] = set()  # blocks behind a window, which no later token sees
        self._candidates: deque[int] = deque()  # blocks to be written, oldest first
        self._under_way: set[int] = set()  # hashes of the pages that are being written
        self._pages_writing = self._states_writing = 0
        self._next = _Moves(0)
        self._sent: deque[_Moves] = deque()
        self._number = 0
        self._epoch = 0
        self._done: list[int] = []  # requests whose reading was cancelled
        self.counts = TierCounts()
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
        self._states.forget(self._states.places_of_lora(number))
        forgotten = self._pages.forget(self._pages.places_of_lora(number))
        self._blocks.tell_host_removed([page.hash for page in forgotten])

    # ---- reading -------------------------------------------------------------------------------

    def begin(self, sequence: Request, found: PrefixMatch, seconds_a_token: float) -> bool:
        """Begin to read the pages of a sequence that could be admitted now. Returns whether any are
        read: then it is parked until `take_in` returns it. found: its prefix on the device;
        seconds_a_token: of computing prompts, 0 if unknown."""
        if sequence.tier_reads == _MOST_READS or not self._pages.num_used:
            return False
        size = self._blocks.block_size
        tokens = sequence.named(sequence.cacheable_token_ids, 0, size)
        whole = (len(tokens) - 1) // size * size
        least = max(self._setup.min_tokens, 1)
        asked = whole - found.num_blocks * size
        if asked < least:
            return False
        # The search begins at the first block, so it comes only if a place has the next one.
        first, match = found.num_blocks * size, None
        if self._search.goes_on(tokens[first : first + size].tobytes(), found.last_hash):
            chain = self._blocks.root_of(sequence.cache_salt, sequence.lora)
            match = self._search.longest(tokens[:whole].tobytes(), chain)
        gained = 0 if match is None else max(0, match.num_blocks - found.num_blocks) * size
        if not sequence.tier_reads:
            self.counts.asked_tokens += asked
            self.counts.found_tokens += gained
        if match is None or gained < least:
            return False
        if self._is_slower(match, gained * seconds_a_token):
            self.counts.computed_tokens += gained
            return False
        load = self._load(sequence, match)
        if load is None:
            return False
        sequence.tier_reads += 1
        self._next.loads.append(load)
        return True

    def _is_slower(self, match: TierMatch, compute_seconds: float) -> bool:
        """Predict whether reading takes longer than computing; False while a speed is unknown."""
        setup = self._setup
        size_bytes = len(match.missing) * setup.page_bytes
        if match.state is not None:
            size_bytes += setup.state_bytes
        return 0 < compute_seconds < self.counts.seconds_to_load(size_bytes)

    def _load(self, sequence: Request, match: TierMatch) -> _Load | None:
        """Take the blocks of a prefix; None if there are too few."""
        pool, places = self._blocks.pool, [each.place for each in match.missing]
        held = [block for _, block in match.blocks]
        if len(places) + pool.count_unreferenced(held) > pool.num_free:
            return None
        state = None
        if match.state is not None:
            assert self._blocks.checkpoints is not None
            checkpoint = self._blocks.checkpoints.take()
            if checkpoint is None:
                return None
            state = _State(self._states.page_in(match.state), match.state, checkpoint)
            self._states.pin([match.state])
        self._pages.pin(places)
        pool.hold(held)
        new = pool.allocate(len(places))
        added = zip([each.index for each in match.missing], new, strict=True)
        return _Load(
            sequence.id,
            match.missing,
            [*match.blocks, *added],
            new,
            [self._pages.page_in(place) for place in places],
            state,
            None if sequence.lora is None else sequence.lora.lora_name,
        )

    # ---- a step --------------------------------------------------------------------------------

    @property
    def has_news(self) -> bool:
        """Return whether `take_in` or `send` has something to do now."""
        if self._done or self._next.saves or self._next.loads:
            return True
        if self._candidates and self._room > 0:
            return True
        return bool(self._sent) and self._mover.moved_number() >= self._sent[0].number

    def check_integrity(self) -> list[int]:
        """Raise AssertionError if the places of pages do not add up. Returns the blocks that parked
        requests hold, each as often as it is held."""
        moves = (*self._sent, self._next)
        saves = [save.pages is self._pages for each in moves for save in each.saves]
        self._pages.check_integrity(sum(saves))
        self._states.check_integrity(len(saves) - sum(saves))
        return [block for each in moves for load in each.loads for _, block in load.blocks]

    def totals(self) -> dict[str, Any]:
        """Return the tier's counters by their names in StatsBody."""
        used = self._pages.num_used + self._states.num_used
        return self.counts.totals(used, self._setup.num_pages + self._setup.num_states)

    def take_in(self) -> list[int]:
        """Process the moves that are complete; return the requests that are parked no longer."""
        done, self._done = self._done, []
        number = self._mover.moved_number()
        while self._sent and self._sent[0].number <= number:
            moves = self._sent.popleft()
            is_current = moves.epoch == self._epoch
            for save in moves.saves:
                self._keep(save, is_current=is_current)
            for load in moves.loads:
                rows = [move.row for move in self._moves_of(load)]
                spoiled = self._mover.spoiled_rows(moves.number, rows)
                self.counts.spoiled += len(spoiled)
                self._join(load, spoiled, is_current=is_current)
                done.append(load.request)
            self.counts.moved = self._mover.move_totals()
        return done

    def send(self) -> None:
        """Send the moves that were decided since the last call, before the step that may overwrite
        their blocks."""
        while self._candidates and self._room > 0:
            block_id = self._candidates.popleft()
            hash_ = self._blocks.pool.hash_of(block_id)
            if hash_ is not None and block_id not in self._unwanted:
                self._write(block_id, hash_)
        moves = self._next
        if not moves.saves and not moves.loads:
            return
        self._number += 1
        moves.number, self._next = self._number, _Moves(self._epoch)
        self._sent.append(moves)
        loads = [move for load in moves.loads for move in self._moves_of(load)]
        self._mover.move_pages(self._number, [save.move for save in moves.saves], loads)

    def wait(self) -> bool:
        """Wait for the oldest moves that are under way. Returns False if there are none."""
        if self._sent:
            self._mover.wait_moved(self._sent[0].number)
        return bool(self._sent)

    def settle(self) -> None:
        """Cancel the moves that were not sent, and wait for the others: the device's memory is
        about to be given back."""
        self._cancel()
        if self._sent:
            self._mover.wait_moved(self._number)
            self._done = self.take_in()

    def clear(self, *, keep_pages: bool = False) -> None:
        """Forget which blocks are to be written and, unless `keep_pages`, all pages. The moves that
        are under way make nothing findable."""
        self._cancel()
        self._epoch += 1
        self._next.epoch = self._epoch
        self._candidates.clear()
        self._unwanted.clear()
        self._under_way.clear()
        if not keep_pages:
            self._pages.clear()
            self._states.clear()

    def _moves_of(self, load: _Load) -> list[Move]:
        moves = [
            Move(each.group, block, each.place)
            for each, block in zip(load.missing, load.new, strict=True)
        ]
        if load.state is not None:
            moves.append(self._state_move(load.state.checkpoint, load.state.place))
        return moves

    def _state_move(self, checkpoint: int, place: int) -> Move:
        return Move(self._state_kind, checkpoint, self._setup.num_pages + place)

    def _join(self, load: _Load, spoiled: set[int], *, is_current: bool) -> None:
        """Make the pages that were read findable on the device, and give their blocks back to its
        prefix cache. A spoiled page is forgotten, and computed again."""
        self._pages.unpin(load.places)
        bad = self._pages.forget([place for place in load.places if place in spoiled])
        self._blocks.tell_host_removed([page.hash for page in bad])
        if is_current:
            for each, block, page in zip(load.missing, load.new, load.pages, strict=True):
                if each.place not in spoiled:
                    self._blocks.publish_read(block, page, each.index, load.lora_name)
        if load.state is not None:
            self._join_state(load.state, spoiled, is_current=is_current)
        self._release(load)

    def _join_state(self, state: _State, spoiled: set[int], *, is_current: bool) -> None:
        checkpoints, page = self._blocks.checkpoints, state.page
        assert checkpoints is not None
        self._states.unpin([state.place])
        is_spoiled = self._setup.num_pages + state.place in spoiled
        if is_spoiled:
            self._states.forget([state.place])
        block = self._blocks.pool.find_proven(page.hash, page.parent, page.packed)
        if is_spoiled or not is_current or block is None:
            checkpoints.give_back(state.checkpoint)
        else:
            checkpoints.keep(block, state.checkpoint)

    def _release(self, load: _Load) -> None:
        """Give the blocks of a prefix back, the deepest to be evicted first."""
        self._blocks.pool.free([block for _, block in sorted(load.blocks)])

    def _cancel(self) -> None:
        """Drop the moves that were not sent."""
        moves, self._next = self._next, _Moves(self._epoch)
        for save in moves.saves:
            save.pages.give_back(save.place)
            self._end_writing(save, is_current=True)
        for load in moves.loads:
            self._pages.unpin(load.places)
            if load.state is not None:
                assert self._blocks.checkpoints is not None
                self._states.unpin([load.state.place])
                self._blocks.checkpoints.give_back(load.state.checkpoint)
            self._release(load)
            self._done.append(load.request)

    # ---- writing -------------------------------------------------------------------------------

    @property
    def _room(self) -> int:
        """Return how many more pages may be under way."""
        return self._setup.queue_pages - self._pages_writing

    def _is_kept(self, hash_: int) -> bool:
        return hash_ in self._under_way or self._pages.holds(hash_)

    def _write(self, block_id: int, hash_: int) -> None:
        """Begin to write a block, and the checkpoint of states at its end, as far as the host lacks
        them."""
        lora = self._blocks.lora_of(block_id)
        if self._blocks.is_retired(lora):
            return
        parent, packed = self._blocks.pool.contents(block_id)
        page = Page(int(self._groups[block_id]), hash_, parent, packed, lora)
        if not self._is_kept(hash_):
            place = self._take_place(self._pages)
            if place is None:
                return
            move = Move(page.group, block_id, place)
            told = self._blocks.told_of_host(page)
            self._under_way.add(hash_)
            self._next.saves.append(_Save(self._pages, page, place, move, told))
            self._pages_writing += 1
        checkpoints = self._blocks.checkpoints
        checkpoint = None if checkpoints is None else checkpoints.place_of(block_id)
        if checkpoint is None or self._states.holds(hash_):
            return
        if self._states_writing >= self._setup.queue_states:
            self.counts.dropped_queue += 1
            return
        place = self._take_place(self._states)
        if place is not None:
            move = self._state_move(checkpoint, place)
            self._next.saves.append(_Save(self._states, page, place, move))
            self._states_writing += 1

    def _take_place(self, pages: HostPages) -> int | None:
        taken = pages.take()
        if taken is None:
            self.counts.dropped_full += 1
            return None
        place, evicted = taken
        if evicted is not None and pages is self._pages:
            self._blocks.tell_host_removed([evicted.hash])
        return place

    def _keep(self, save: _Save, *, is_current: bool) -> None:
        """Make a page findable that was written."""
        self._end_writing(save, is_current=is_current)
        if not is_current or self._blocks.is_retired(save.page.lora):
            save.pages.give_back(save.place)
        elif save.pages.put(save.place, save.page) and save.told is not None:
            self._blocks.log(save.told)

    def _end_writing(self, save: _Save, *, is_current: bool) -> None:
        if save.pages is self._states:
            self._states_writing -= 1
            return
        self._pages_writing -= 1
        if is_current:
            self._under_way.discard(save.page.hash)
