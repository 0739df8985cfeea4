"""TierReads: chooses the pages that are read back for a request, and keeps those that arrive.

A prefix is read in parts: the host's pages at once, and pages of files as calls end, through places
of the host. The request is parked until all parts have ended; its blocks are held meanwhile, so
the first part is still there when the last one arrives. A page that does not arrive is computed
again. Policy alone. Owned by KVTiers, which sends the loads and reports their end.
"""

from __future__ import annotations

from dataclasses import replace

from atom.model_engine.block_manager import BlockManager, PrefixMatch
from atom.model_engine.blocks.block_log import Medium
from atom.model_engine.blocks.host_pages import Page
from atom.model_engine.blocks.tier_search import Caches, Missing, StateAt, TierMatch, TierSearch
from atom.model_engine.page_moves import Move
from atom.model_engine.schedule.read_speed import Choice, ReadOrCompute
from atom.model_engine.schedule.tiers.host_places import HostPlaces
from atom.model_engine.schedule.tiers.tier_reading import (
    Arrived,
    Fetch,
    Load,
    Part,
    Reading,
    StateLoad,
    TierSetup,
)
from atom.model_engine.sequence import Sequence as Request

_MOST_READS = 2  # of one request, until it is admitted: its pages may be evicted meanwhile


class TierReads:
    """Decides reads. loads: to be sent with the next moves; done: requests that wait no longer.
    epoch: of the caches, which changes when they are cleared; now: in seconds, at the last
    `KVTiers.take_in`."""

    def __init__(self, blocks: BlockManager, host: HostPlaces, setup: TierSetup) -> None:
        self._blocks, self._host, self._setup = blocks, host, setup
        states = None if blocks.checkpoints is None else host.states
        caches = Caches(blocks.pool, host.pages, blocks.checkpoints, states, host.files)
        self._search = TierSearch(caches, blocks.groups, blocks.marks, blocks.block_size)
        self._counts, self._files = host.counts, host.files
        self.loads: list[Load] = []
        self.done: list[int] = []
        self.epoch = 0
        self.now = 0.0
        self._of_host = ReadOrCompute(host.speed)
        files = [] if host.files is None else [host.files.speed]
        self._of_files = ReadOrCompute(*files, host.speed)

    # ---- admission -----------------------------------------------------------------------------

    def begin(self, sequence: Request, found: PrefixMatch, seconds_a_token: float) -> bool:
        """Begin to read the pages of a sequence that could be admitted now. Returns whether any are
        read: then it is parked until it is `done`. found: its prefix on the device;
        seconds_a_token: of computing prompts, 0 if unknown."""
        if sequence.tier_reads == _MOST_READS or self._host.is_empty:
            return False
        size = self._blocks.block_size
        tokens = sequence.named(sequence.cacheable_token_ids, 0, size)
        whole = (len(tokens) - 1) // size * size
        asked = whole - found.num_blocks * size
        if asked < self._least_tokens:
            return False
        if not sequence.tier_reads:
            self._counts.asked_tokens += asked
        began = self._begin(sequence, found, tokens[:whole].tobytes(), seconds_a_token)
        sequence.tier_reads += began
        return began

    @property
    def _least_tokens(self) -> int:
        return max(self._setup.min_tokens, 1)

    def _begin(
        self, sequence: Request, found: PrefixMatch, packed: bytes, seconds_a_token: float
    ) -> bool:
        """Begin to read the longest prefix that is worth it: of all tiers or, if files take longer
        than computing or have no room in the host, of the host alone."""
        size, counts = self._blocks.block_size, self._counts
        for adapter in self._adapters(sequence):
            match = self._longest(sequence, found, packed, adapter)
            gained = 0 if match is None else max(0, match.num_blocks - found.num_blocks) * size
            if match is None or gained < self._least_tokens:
                return False
            of_files = match.blocks_of_files(found.num_blocks) * size
            choices = self._of_files if match.reads_files else self._of_host
            choice = choices.choose(self._seconds_of(match), gained * seconds_a_token, self.now)
            is_slower = choice is Choice.COMPUTE
            if not sequence.tier_reads and (not match.reads_files or not is_slower):
                counts.found_tokens += gained - of_files
                counts.disk_found_tokens += of_files
            reading = None if is_slower else self._read(sequence, match)
            if reading is not None:
                if choice is Choice.PROBE:
                    reading.probe = choices
                    choices.begin_probe(self.now)
                return True
            if not sequence.tier_reads and is_slower:
                counts.computed_tokens += of_files if match.reads_files else gained
            if not match.reads_files:
                return False
        return False

    def _adapters(self, sequence: Request) -> list[bytes | None]:
        """Return the digests of `TierSearch.look` for a search of all tiers, and of the host
        alone."""
        if self._files is None:
            return [None]
        lora = sequence.lora
        adapter = self._files.names.adapter(None if lora is None else lora.lora_int_id)
        return [None] if adapter is None else [adapter, None]

    def _longest(
        self, sequence: Request, found: PrefixMatch, packed: bytes, adapter: bytes | None
    ) -> TierMatch | None:
        # The search begins at the first block, so it comes only if a place has the next one.
        size = 4 * self._blocks.block_size
        first = found.num_blocks * size
        self._search.look(adapter)
        if not self._search.goes_on(packed[first : first + size], found.last_hash):
            return None
        chain = self._blocks.root_of(sequence.cache_salt, sequence.lora)
        return self._search.longest(packed, chain)

    def may_probe(self) -> bool:
        """Note that reading the host's pages does not pay; returns whether it is to be measured
        again."""
        return self._of_host.avoid(self.now)

    def _seconds_of(self, match: TierMatch) -> float:
        """Predict the time of reading; 0 while all speeds are unknown."""
        setup, state = self._setup, match.state
        size_bytes = len(match.missing) * setup.page_bytes
        file_bytes = sum(each.name is not None for each in match.missing) * setup.page_bytes
        if state is not None:
            size_bytes += setup.state_bytes
            file_bytes += 0 if state.name is None else setup.state_bytes
        seconds = self._host.speed.seconds_for(size_bytes)
        if file_bytes and self._files is not None:
            seconds += self._files.seconds_to_read(file_bytes * setup.ranks)
        return seconds

    def _read(self, sequence: Request, match: TierMatch) -> Reading | None:
        """Begin to read a prefix; None if there are too few blocks, or places for its files."""
        pool, held = self._blocks.pool, [block for _, block in match.blocks]
        if len(match.missing) + pool.count_unreferenced(held) > pool.num_free:
            return None
        lora, pages = sequence.lora, self._host.pages
        number = None if lora is None else lora.lora_int_id
        identities = [self._page_of(match, each, number) for each in match.missing]
        at_host = [each.place for each in match.missing if each.name is None]
        pages.pin(at_host)
        places = self._host.take_all(len(match.missing) - len(at_host))
        state = None
        if places is not None and match.state is not None:
            state = self._state_load(match, match.state, number)
        if places is None or (state is None) != (match.state is None):
            pages.unpin(at_host)
            for place in places or ():
                pages.give_back(place)
            return None
        pool.hold(held)
        new, rows = pool.allocate(len(match.missing)), iter(places)
        parts = [
            Part(each if each.name is None else replace(each, place=next(rows)), block, page)
            for each, block, page in zip(match.missing, new, identities, strict=True)
        ]
        added = [(part.missing.index, part.block) for part in parts]
        name = None if lora is None else lora.lora_name
        reading = Reading(sequence.id, name, [*match.blocks, *added])
        self._send_parts(reading, parts, state, match.state)
        return reading

    def _send_parts(
        self, reading: Reading, parts: list[Part], state: StateLoad | None, at: StateAt | None
    ) -> None:
        """Begin to read the host's pages, and those of files. A checkpoint goes with the last of
        them, since the block at its end keeps it."""
        of_files = [part for part in parts if part.missing.name is not None]
        rest = [part for part in parts if part.missing.name is None]
        state_name = None if at is None else at.name
        fetches = bool(of_files) or state_name is not None
        if rest or not fetches:
            self._add_load(reading, rest, None if fetches else state)
        if fetches:
            assert self._files is not None
            fetch = Fetch(reading, of_files, state, state_name, self.epoch)
            reading.parts += self._files.read(fetch) + (state is not None)

    def _add_load(self, reading: Reading, parts: list[Part], state: StateLoad | None) -> None:
        reading.parts += 1
        self.loads.append(Load(reading, parts, state))

    def _page_of(self, match: TierMatch, missing: Missing, number: int | None) -> Page:
        if missing.name is None:
            return self._host.pages.page_in(missing.place)
        mark, at = self._blocks.marks[missing.group], missing.index
        hash_, parent = match.hashes[at + 1] ^ mark, match.hashes[at] ^ mark
        return Page(missing.group, hash_, parent, match.tokens[at], number)

    def _state_load(self, match: TierMatch, at: StateAt, number: int | None) -> StateLoad | None:
        """Take a checkpoint for the state at a prefix's end, and the host's place of it."""
        checkpoints, states = self._blocks.checkpoints, self._host.states
        assert checkpoints is not None
        checkpoint = checkpoints.take()
        if checkpoint is None:
            return None
        if at.name is None:
            states.pin([at.place])
            return StateLoad(states.page_in(at.place), at.place, checkpoint)
        place = self._host.take(states)
        if place is None:
            checkpoints.give_back(checkpoint)
            return None
        end = match.num_blocks
        page = Page(0, match.hashes[end], match.hashes[end - 1], match.tokens[end - 1], number)
        return StateLoad(page, place, checkpoint)

    # ---- arrivals ------------------------------------------------------------------------------

    def arrive(self, arrived: Arrived) -> None:
        """Make pages of files findable in the host, and load them for the request that waits."""
        fetch, reading = arrived.fetch, arrived.fetch.reading
        parts = fetch.parts[arrived.first : arrived.first + len(arrived.whole)]
        kept = [
            part.at(place)
            for part, whole in zip(parts, arrived.whole, strict=True)
            if (place := self._keep(part, whole=whole, epoch=fetch.epoch)) is not None
        ]
        if reading is not None and kept:
            self._host.pages.pin([part.missing.place for part in kept])
            self._add_load(reading, kept, None)
        if arrived.state_whole is not None:
            self._keep_state(fetch, whole=arrived.state_whole)
        if reading is None:
            return
        if arrived.is_last and fetch.has_state:
            if fetch.state is not None:
                self._add_load(reading, [], fetch.state)
            self._end_part(reading)
        self._end_part(reading)

    def _keep(self, part: Part, *, whole: bool, epoch: int) -> int | None:
        """Return the place of a page that has arrived; None if it has not."""
        pages, page, place = self._host.pages, part.page, part.missing.place
        if not whole or epoch != self.epoch or self._blocks.is_retired(page.lora):
            pages.give_back(place)
            return None
        if not pages.put(place, page):
            return pages.find(page.hash, page.parent, page.packed)
        told = self._blocks.told_of(page, Medium.CPU)
        if told is not None:
            self._blocks.log(told)
        return place

    def _keep_state(self, fetch: Fetch, *, whole: bool) -> None:
        """Keep a checkpoint that was read from a file, or let the fetch go on without it."""
        states, state = self._host.states, fetch.state
        assert state is not None
        page, place = state.page, state.place
        is_whole = whole and fetch.epoch == self.epoch and not self._blocks.is_retired(page.lora)
        at: int | None = place
        if not is_whole:
            states.give_back(place)
            at = None
        elif not states.put(place, page):
            at = states.find(page.hash, page.parent, page.packed)
        if fetch.reading is None:
            fetch.state = None
        elif at is None:
            self._give_back_checkpoint(state)
            fetch.state = None
        else:
            states.pin([at])
            fetch.state = replace(state, place=at)

    def abandon(self, fetch: Fetch) -> None:
        """Let the request of a fetch wait no longer. What arrives is kept in the host."""
        reading, fetch.reading = fetch.reading, None
        if reading is None:
            return
        if fetch.state is not None:
            self._give_back_checkpoint(fetch.state)
            if fetch.state_name is None or not fetch.state_is_coming:
                self._host.states.unpin([fetch.state.place])
        if fetch.has_state:
            self._end_part(reading)
        for _ in range(len(fetch.open_calls)):
            self._end_part(reading)

    def _give_back_checkpoint(self, state: StateLoad) -> None:
        assert self._blocks.checkpoints is not None
        self._blocks.checkpoints.give_back(state.checkpoint)

    # ---- loads ---------------------------------------------------------------------------------

    def moves_of(self, load: Load) -> list[Move]:
        """Return the moves of a load."""
        moves = [Move(part.missing.group, part.block, part.missing.place) for part in load.parts]
        if load.state is not None:
            moves.append(self._host.state_move(load.state.checkpoint, load.state.place))
        return moves

    def join(self, load: Load, spoiled: set[int], *, is_current: bool) -> None:
        """Make the pages that were read findable on the device. A spoiled page is forgotten, and
        computed again."""
        self._host.pages.unpin(load.places)
        self._host.forget_spoiled([place for place in load.places if place in spoiled])
        if is_current:
            for missing, block, page in load.parts:
                if missing.place not in spoiled:
                    name = load.reading.lora_name
                    self._blocks.publish_read(block, page, missing.index, name)
        if load.state is not None:
            self._join_state(load.state, spoiled, is_current=is_current)
        self._end_part(load.reading)

    def _join_state(self, state: StateLoad, spoiled: set[int], *, is_current: bool) -> None:
        checkpoints, page = self._blocks.checkpoints, state.page
        assert checkpoints is not None
        self._host.states.unpin([state.place])
        is_spoiled = self._host.row_of_state(state.place) in spoiled
        if is_spoiled:
            self._host.forget_spoiled_state(state.place)
        block = self._blocks.pool.find_proven(page.hash, page.parent, page.packed)
        if is_spoiled or not is_current or block is None:
            checkpoints.give_back(state.checkpoint)
        else:
            checkpoints.keep(block, state.checkpoint)

    def cancel(self) -> None:
        """Drop the loads that were not sent."""
        loads, self.loads = self.loads, []
        for load in loads:
            self._host.pages.unpin(load.places)
            if load.state is not None:
                self._host.states.unpin([load.state.place])
                self._give_back_checkpoint(load.state)
            self._end_part(load.reading)

    def _end_part(self, reading: Reading) -> None:
        """Note the end of a part. After the last one the prefix's blocks are given back, the
        deepest to be evicted first, and the request waits no longer."""
        reading.parts -= 1
        if not reading.parts:
            self._blocks.pool.free([block for _, block in sorted(reading.blocks)])
            if reading.probe is not None:
                reading.probe.end_probe(self.now)
            self.done.append(reading.request)
