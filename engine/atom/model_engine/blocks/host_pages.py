"""HostPages: which pages the host's memory holds, by the prefix cache's own hashes.

A page is the content of one KV block outside the device, or of one checkpoint of states. It has the
hash that the block has in the prefix cache, and so is apart by adapter, salt and group of layers
as blocks are. A page is found by hash and proven by its prefix and tokens. Knows places (numbers of
rows in the host's memory), no bytes and no tensors. A place is in exactly one of three states:
  free      its content is worthless
  taken     a page is being written to it
  findable  it holds a page; it may be pinned while the page is read
Called by KVTiers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from atom.model_engine.blocks.eviction_order import EvictionOrder, Policy


@dataclass(frozen=True, slots=True)
class Page:
    """The identity of a page. group: of layers; hash, parent: of its block in the prefix cache, and
    of the block before it, with the group's mark; packed: the tokens of the block as int32; lora:
    the number of the adapter that computed it, None for the model alone."""

    group: int
    hash: int
    parent: int
    packed: bytes
    lora: int | None = None


class HostPages:
    def __init__(self, num_places: int, policy: Policy) -> None:
        self.num_places = num_places
        self._pages: list[Page | None] = [None] * num_places  # of findable places
        self._by_hash: dict[int, int] = {}
        self._free = list(range(num_places - 1, -1, -1))
        self._pins: dict[int, int] = {}
        self._order = EvictionOrder(num_places, policy)

    @property
    def num_used(self) -> int:
        """Return the number of places that hold a page, or get one."""
        return self.num_places - len(self._free)

    def __iter__(self) -> Iterator[Page]:
        """Return all findable pages."""
        return (page for page in self._pages if page is not None)

    def find(self, hash_: int, parent: int, packed: bytes) -> int | None:
        """Return the place of a block's page; None if there is none, or if another block has the
        same 64 bits."""
        place = self._by_hash.get(hash_)
        if place is None:
            return None
        page = self._pages[place]
        assert page is not None
        return place if page.parent == parent and page.packed == packed else None

    def page_in(self, place: int) -> Page:
        """Return the page of a findable place."""
        page = self._pages[place]
        assert page is not None, "the place has no page"
        return page

    def is_at(self, place: int, hash_: int) -> bool:
        """Return whether the page with this hash is findable at a place."""
        return self._by_hash.get(hash_) == place

    def holds(self, hash_: int) -> bool:
        """Return whether a page has this hash."""
        return hash_ in self._by_hash

    def take(self) -> tuple[int, Page | None] | None:
        """Take a place for a new page, and return it with the page that is evicted for it, if any;
        None if every place is being written or read."""
        if self._free:
            return self._free.pop(), None
        if not len(self._order):
            return None
        place = self._order.pop()
        return place, self._unlist(place)

    def give_back(self, place: int) -> None:
        """Free a place that was taken, and gets no page."""
        self._free.append(place)

    def put(self, place: int, page: Page) -> bool:
        """Make the page in a taken place findable. Returns False if its hash is findable already;
        the place is free then."""
        if page.hash in self._by_hash:
            self._free.append(place)
            return False
        self._by_hash[page.hash] = place
        self._pages[place] = page
        self._order.add(place)
        return True

    def pin(self, places: Iterable[int], *, is_use: bool = True) -> None:
        """Keep findable pages until `unpin`. is_use: each is used by a request, which counts."""
        for place in places:
            count = self._pins.get(place, 0)
            self._pins[place] = count + 1
            if is_use:
                self._order.use(place)
            if not count:
                self._order.remove(place)

    def unpin(self, places: Iterable[int]) -> None:
        """Let pages be evicted again; the page of a place may have been forgotten meanwhile."""
        for place in places:
            count = self._pins[place] - 1
            if count:
                self._pins[place] = count
                continue
            del self._pins[place]
            if self._pages[place] is None:
                self._free.append(place)
            else:
                self._order.add(place)

    def forget(self, places: Iterable[int]) -> list[Page]:
        """Forget the pages of these places, findable ones alone, and return them."""
        forgotten = []
        for place in places:
            if self._pages[place] is None:
                continue
            self._order.forget(place)
            forgotten.append(self._unlist(place))
            if place not in self._pins:
                self._free.append(place)
        return forgotten

    def places_of_lora(self, number: int) -> list[int]:
        """Return the places whose pages an adapter computed. O(places), for rare events."""
        pages = enumerate(self._pages)
        return [place for place, page in pages if page is not None and page.lora == number]

    def clear(self) -> list[Page]:
        """Forget all findable pages, and return them."""
        return self.forget(list(self._by_hash.values()))

    def _unlist(self, place: int) -> Page:
        page = self._pages[place]
        assert page is not None
        self._pages[place] = None
        del self._by_hash[page.hash]
        return page

    def check_integrity(self, taken: int) -> None:
        """Raise AssertionError if places do not add up. taken: how many are being written."""
        findable = {place for place, page in enumerate(self._pages) if page is not None}
        free, ordered, pinned = set(self._free), set(self._order), set(self._pins)
        assert len(free) == len(self._free), "a free place is listed twice"
        assert set(self._by_hash.values()) == findable
        assert ordered == findable - pinned, "a page that no read holds cannot be evicted"
        assert free.isdisjoint(findable | pinned)
        assert len(free | findable | pinned) + taken == self.num_places, "a place is lost"
