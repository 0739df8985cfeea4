"""TierFiles: the pages in files below the host's pages, as the scheduler sees them.

It decides which pages are written to files, and splits what is read into calls that end one after
the other. A page is written after it has reached the host, a bounded number at a time, so its
eviction from there costs nothing; a page that is evicted before is dropped and counted. A drop
leaves no hole. Knows no tensors and no disk: a DiskStore's threads move the bytes. Owned by
KVTiers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from atom.model_engine.block_manager import BlockManager
from atom.model_engine.blocks.block_log import Medium, Stored
from atom.model_engine.blocks.host_pages import HostPages, Page
from atom.model_engine.blocks.tier_search import Missing
from atom.model_engine.kv_disk.disk_moves import DiskStore, DiskTotals, FileMove, FilesMoved
from atom.model_engine.kv_disk.page_names import PageNames, block_name
from atom.model_engine.schedule.read_speed import ReadSpeed
from atom.model_engine.schedule.tiers.tier_reading import Arrived, Fetch, Writing

_CALL_BYTES = 32 << 20  # that one call reads
_QUEUE_BYTES = 256 << 20  # that are being written


class TierFiles:
    def __init__(
        self, store: DiskStore, blocks: BlockManager, pages: HostPages, row_bytes: int
    ) -> None:
        """pages: the host's, of blocks; row_bytes: of a page, of all ranks."""
        self._store, self._blocks, self._pages = store, blocks, pages
        self._state_kind = len(blocks.groups)
        self._num_pages = pages.num_places
        self._most_writing = max(1, min(pages.num_places // 4, _QUEUE_BYTES // row_bytes))
        self._pages_a_call = max(1, _CALL_BYTES // row_bytes)
        self._candidates: deque[tuple[HostPages, int, int]] = deque()  # of pages, place, hash
        self._unwritten: set[int] = set()  # hashes of candidates of blocks
        self._writings: dict[int, tuple[Writing, Stored | None]] = {}
        self._fetches: dict[int, Fetch] = {}  # by call
        self._told: dict[bytes, int] = {}  # hashes of the files that events have told
        # Files that are gone before their end of writing, which is then not told.
        self._gone_early: set[bytes] = set()
        self._number = 0
        self.dropped = 0
        self.speed = ReadSpeed()

    # ---- search --------------------------------------------------------------------------------

    def find(self, hash_: int, parent: int, packed: bytes, adapter: bytes) -> bytes | None:
        """Find the page of a block; returns the name of its file."""
        name = block_name(hash_, parent, packed, adapter)
        return name if self._store.holds(name) else None

    def find_state(self, hash_: int, parent: int, packed: bytes, adapter: bytes) -> bytes | None:
        """Find the checkpoint of states at a block's end; returns the name of its file."""
        name = block_name(hash_, parent, packed, adapter, is_state=True)
        return name if self._store.holds(name) else None

    @property
    def names(self) -> PageNames:
        """Return the names of pages, which cover the digests of adapters."""
        return self._store.names

    @property
    def is_empty(self) -> bool:
        """Return whether no file can be found."""
        return not self._store.totals().pages

    def seconds_to_read(self, size_bytes: int) -> float:
        """Predict the time of reading files into rows, behind the calls under way; 0 if
        unknown."""
        self._note_moved()  # a disk that stands still is measured, too
        return self.speed.seconds_for(size_bytes + self._store.waiting_bytes)

    def _note_moved(self) -> None:
        totals = self._store.totals()
        self.speed.observe(totals.load_bytes, totals.load_seconds)

    @property
    def wake_fd(self) -> int:
        """Return the descriptor that is readable when `take_in` has something to do."""
        return self._store.wake_fd

    def retarget(self, weights: str) -> None:
        """Keep files of other weights from now on. weights: the path of a checkpoint."""
        self._store.retarget(weights)
        self._told.clear()

    def close(self) -> None:
        """Complete the writes that were begun."""
        self._store.close()

    # ---- writing -------------------------------------------------------------------------------

    def kept(self, pages: HostPages, place: int) -> None:
        """Note a page that the host has now."""
        page = pages.page_in(place)
        if len(self._candidates) > 2 * self._num_pages:  # a disk that is switched off
            listed = [each for each in self._candidates if each[0].is_at(each[1], each[2])]
            self._candidates = deque(listed)
        self._candidates.append((pages, place, page.hash))
        if pages is self._pages:
            self._unwritten.add(page.hash)

    def evicted(self, page: Page) -> None:
        """Note a page of a block that the host has no longer."""
        if page.hash in self._unwritten:
            self._unwritten.discard(page.hash)
            self.dropped += 1

    @property
    def _may_write(self) -> bool:
        if not self._candidates or self._store.is_off:
            return False
        return len(self._writings) < self._most_writing

    def send(self) -> None:
        """Begin to write pages, as many as may be under way."""
        while self._may_write:
            pages, place, hash_ = self._candidates.popleft()
            is_state = pages is not self._pages
            if not pages.is_at(place, hash_):
                continue  # it was evicted
            if not is_state:
                self._unwritten.discard(hash_)
            page = pages.page_in(place)
            name = self._store.names.name(page, is_state=is_state)
            if name is not None and not self._store.holds(name):
                self._write(Writing(pages, place, page, name), is_state=is_state)

    def _write(self, writing: Writing, *, is_state: bool) -> None:
        writing.pages.pin([writing.place], is_use=False)
        self._number += 1
        told = None if is_state else self._blocks.told_of(writing.page, Medium.STORAGE)
        self._writings[self._number] = writing, told
        self._store.write(self._number, [self._move(writing, is_state=is_state)])

    def _move(self, writing: Writing, *, is_state: bool) -> FileMove:
        kind = self._state_kind if is_state else writing.page.group
        row = writing.place + (self._num_pages if is_state else 0)
        return FileMove(writing.name, row, kind, self._blocks.block_size)

    # ---- reading -------------------------------------------------------------------------------

    def read(self, fetch: Fetch) -> int:
        """Begin to read the pages of a fetch, and its state; returns the number of parts that its
        reading gets."""
        size = self._blocks.block_size
        moves = [_file_move(part.missing, size) for part in fetch.parts]
        if fetch.state_name is not None:
            assert fetch.state is not None
            row = self._num_pages + fetch.state.place
            moves.append(FileMove(fetch.state_name, row, self._state_kind, size))
        calls = []
        for first in range(0, len(moves), self._pages_a_call):
            part = moves[first : first + self._pages_a_call]
            self._number += 1
            fetch.open_calls[self._number] = first, len(part)
            self._fetches[self._number] = fetch
            calls.append((self._number, part))
        for number, part in calls:
            self._store.read(number, part)
        return len(calls)

    def drop(self, pages: Sequence[Page], *, is_state: bool = False) -> None:
        """Remove the files of pages that are wrong."""
        names = [self._store.names.name(page, is_state=is_state) for page in pages]
        self._store.forget([name for name in names if name is not None])

    @property
    def fetches(self) -> list[Fetch]:
        """Return the fetches under way, each once."""
        return list(dict.fromkeys(self._fetches.values()))

    # ---- a step --------------------------------------------------------------------------------

    @property
    def has_news(self) -> bool:
        """Return whether `take_in` or `send` has something to do now."""
        if self._store.has_moved:
            return True
        return self._may_write

    def take_in(self) -> tuple[list[Arrived], list[Fetch]]:
        """Process the calls that have ended. Returns the pages that were read, and the fetches that
        take too long."""
        arrived, late = [], []
        self._note_moved()
        for moved in self._store.take_moved():
            if moved.number in self._writings:
                self._written(moved)
                continue
            fetch = self._fetches[moved.number]
            if moved.is_late:
                late.append(fetch)
                continue
            del self._fetches[moved.number]
            first, number = fetch.open_calls.pop(moved.number)
            count = len(fetch.parts) - first  # pages of blocks, and then the state
            state = moved.whole[count] if number > count else None
            whole = moved.whole[:count]
            arrived.append(Arrived(fetch, first, whole, state, not fetch.open_calls))
        self._tell_gone()
        return arrived, late

    def _written(self, moved: FilesMoved) -> None:
        if moved.is_late:  # its row stays pinned until it has ended
            return
        writing, told = self._writings.pop(moved.number)
        writing.pages.unpin([writing.place])
        is_gone = writing.name in self._gone_early
        self._gone_early.discard(writing.name)
        if not moved.whole[0]:
            self.dropped += 1
        elif is_gone:
            return
        elif told is not None and writing.name not in self._told:
            self._told[writing.name] = writing.page.hash
            self._blocks.log(told)

    def _tell_gone(self) -> None:
        names = self._store.take_gone()
        if not names:
            return
        writing = {each.name for each, _ in self._writings.values()}
        self._gone_early |= writing.intersection(names)
        gone = [self._told.pop(name, None) for name in names]
        hashes = [each for each in gone if each is not None]
        self._blocks.tell_removed(hashes, Medium.STORAGE)

    def clear(self, *, keep_pages: bool, keep_files: bool) -> None:
        """Forget which pages are to be written, unless the host keeps them, and all files unless
        they are kept."""
        if not keep_pages:
            self._candidates.clear()
            self._unwritten.clear()
            self._told.clear()  # an event tells that nothing is findable any more
            self._gone_early |= {each.name for each, _ in self._writings.values()}
        if not keep_files:
            self._store.clear()

    def wait(self) -> bool:
        """Wait until a call ends; False if no request waits for one."""
        if not self._fetches:
            return False
        self._store.wait()
        return True

    def totals(self) -> DiskTotals:
        """Return the store's totals."""
        return self._store.totals()


def _file_move(missing: Missing, tokens: int) -> FileMove:
    assert missing.name is not None
    return FileMove(missing.name, missing.place, missing.group, tokens)
