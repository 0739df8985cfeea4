"""HostPlaces: the host's pages and checkpoints of states, and the effects of their evictions."""

from __future__ import annotations

from atom.model_engine.block_manager import BlockManager
from atom.model_engine.blocks.block_log import Medium
from atom.model_engine.blocks.eviction_order import Policy
from atom.model_engine.blocks.host_pages import HostPages
from atom.model_engine.page_moves import Move, MoveTotals
from atom.model_engine.schedule.read_speed import ReadSpeed
from atom.model_engine.schedule.tiers.tier_counts import TierCounts
from atom.model_engine.schedule.tiers.tier_files import TierFiles


class HostPlaces:
    """Hands out places. pages: of blocks; states: of checkpoints, whose rows follow those of
    blocks; files: behind them, if there are any; speed: of copies to the device."""

    def __init__(
        self, blocks: BlockManager, num_pages: int, num_states: int, policy: Policy
    ) -> None:
        self._blocks = blocks
        self.pages = HostPages(num_pages, policy)
        self.states = HostPages(num_states, policy)
        self.files: TierFiles | None = None
        self.counts = TierCounts()
        self.speed = ReadSpeed()
        self._state_kind = len(blocks.groups)

    @property
    def is_empty(self) -> bool:
        """Return whether no page can be found."""
        return not self.pages.num_used and (self.files is None or self.files.is_empty)

    def note_moved(self, totals: MoveTotals) -> None:
        """Note the totals of copies until now."""
        self.counts.moved = totals
        self.speed.observe(totals.load_bytes, totals.load_seconds)

    def take(self, pages: HostPages) -> int | None:
        """Take a place for a new page, evicting another one; None if all are in use."""
        taken = pages.take()
        if taken is None:
            self.counts.dropped_full += 1
            return None
        place, evicted = taken
        if evicted is not None and pages is self.pages:
            self._blocks.tell_removed([evicted.hash], Medium.CPU)
            if self.files is not None:
                self.files.evicted(evicted)
        return place

    def take_all(self, count: int) -> list[int] | None:
        """Take places for pages of blocks; None if there are too few."""
        places: list[int] = []
        while len(places) < count:
            place = self.take(self.pages)
            if place is None:
                for each in places:
                    self.pages.give_back(each)
                return None
            places.append(place)
        return places

    def row_of_state(self, place: int) -> int:
        """Return the row of a checkpoint's place."""
        return self.pages.num_places + place

    def state_move(self, checkpoint: int, place: int) -> Move:
        """Return the move between a checkpoint and a place of the host."""
        return Move(self._state_kind, checkpoint, self.row_of_state(place))

    def forget_spoiled(self, places: list[int]) -> None:
        """Forget pages that are wrong, and their files."""
        pages = self.pages.forget(places)
        self._blocks.tell_removed([page.hash for page in pages], Medium.CPU)
        if self.files is not None:
            self.files.drop(pages)

    def forget_spoiled_state(self, place: int) -> None:
        """Forget a checkpoint that is wrong, and its file."""
        pages = self.states.forget([place])
        if self.files is not None:
            self.files.drop(pages, is_state=True)

    def forget_lora(self, number: int) -> None:
        """Forget the pages of an adapter; its files stay, for servers that have it."""
        self.states.forget(self.states.places_of_lora(number))
        forgotten = self.pages.forget(self.pages.places_of_lora(number))
        self._blocks.tell_removed([page.hash for page in forgotten], Medium.CPU)

    def clear(self) -> None:
        """Forget all findable pages."""
        self.pages.clear()
        self.states.clear()
