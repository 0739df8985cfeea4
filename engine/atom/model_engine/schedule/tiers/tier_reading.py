"""The parts of a prefix on its way to the device, for which a parked request waits.

Values of KVTiers and TierFiles.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from atom.model_engine.blocks.eviction_order import Policy
from atom.model_engine.blocks.host_pages import HostPages, Page
from atom.model_engine.blocks.tier_search import Missing
from atom.model_engine.schedule.read_speed import ReadOrCompute


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
    ranks: int = 1


@dataclass(slots=True, eq=False)
class Reading:
    """A prefix that a parked request waits for. blocks: all that it holds, each with its index;
    parts: of it that are under way; probe: what chose to read it although that does not pay."""

    request: int
    lora_name: str | None
    blocks: list[tuple[int, int]]
    parts: int = 0
    probe: ReadOrCompute | None = None


@dataclass(frozen=True, slots=True)
class StateLoad:
    """A checkpoint of states on its way to the device, from a place of the host."""

    page: Page
    place: int
    checkpoint: int


class Part(NamedTuple):
    """A missing page, its new block, and its identity."""

    missing: Missing
    block: int
    page: Page

    def at(self, place: int) -> Part:
        """Return the part with its page in a place of the host."""
        return self._replace(missing=replace(self.missing, place=place, name=None))


@dataclass(frozen=True, slots=True)
class Load:
    """Pages on their way from the host to the device. state: of the prefix's end, if that is
    read."""

    reading: Reading
    parts: list[Part]
    state: StateLoad | None = None

    @property
    def places(self) -> list[int]:
        """Return the places of the missing pages."""
        return [part.missing.place for part in self.parts]


@dataclass(slots=True, eq=False)
class Fetch:
    """Pages on their way from files to the host. reading: None if no request waits any more;
    parts: places are taken for them; state: of the prefix's end, None if it is lost; state_name:
    None if it is the host's already; open_calls: under way, with their first move and their
    number of moves, of which the state's is the last."""

    reading: Reading | None
    parts: list[Part]
    state: StateLoad | None
    state_name: bytes | None
    epoch: int
    open_calls: dict[int, tuple[int, int]] = field(default_factory=dict)
    has_state: bool = field(init=False)

    def __post_init__(self) -> None:
        self.has_state = self.state is not None

    @property
    def pages_coming(self) -> int:
        """Return how many pages of blocks have not arrived."""
        most = len(self.parts)
        return sum(min(first + count, most) - first for first, count in self.open_calls.values())

    @property
    def state_is_coming(self) -> bool:
        """Return whether the state is read from a file, and has not arrived."""
        return any(first + count > len(self.parts) for first, count in self.open_calls.values())


@dataclass(frozen=True, slots=True)
class Arrived:
    """Pages that a call has read. whole: of each, whether its row has it; state_whole: of the
    checkpoint, None if it was not a part of the call; is_last: no call of the fetch is open."""

    fetch: Fetch
    first: int
    whole: list[bool]
    state_whole: bool | None
    is_last: bool


@dataclass(frozen=True, slots=True)
class Writing:
    """A page of the host on its way to a file."""

    pages: HostPages
    place: int
    page: Page
    name: bytes
