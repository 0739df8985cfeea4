"""Events of the side channel, from its thread to the engine core's.

`link` names a consumer's connection to this producer; `place` a producer that this consumer reads
from.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from atom.model_engine.kv_transfer.frames import Refused, Want
from atom.model_engine.page_access import PageContent


class Place(NamedTuple):
    """Locate the side channel of a producer."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Wanted:
    link: int
    want: Want


@dataclass(frozen=True, slots=True)
class Renewed:
    link: int
    tickets: list[str]


@dataclass(frozen=True, slots=True)
class DoneWith:
    ticket: str


@dataclass(frozen=True, slots=True)
class LinkLost:
    """A consumer is gone; it can read none of its tickets again."""

    link: int


@dataclass(frozen=True, slots=True)
class Welcomed:
    place: Place


@dataclass(frozen=True, slots=True)
class PageCame:
    """A page of a ticket arrived; `whole` if its checksum agrees, which is not known yet of a page
    on a device. payload: readable until the channel hears that the page was consumed; connection:
    that it came by; at: see `Page`."""

    place: Place
    ticket: str
    number: int
    payload: PageContent
    whole: bool
    connection: int = 0
    at: int = -1


@dataclass(frozen=True, slots=True)
class PagesWritten:
    """Pages are in their blocks, except those that failed, and those that arrived damaged."""

    written: list[PageCame]
    failed: list[PageCame]
    damaged: list[PageCame] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class PagesEnded:
    ticket: str


@dataclass(frozen=True, slots=True)
class TicketGone:
    ticket: str
    reason: str


@dataclass(frozen=True, slots=True)
class PlaceLost:
    """A producer cannot be read from. refused: its layout differs; welcomed: it was reached."""

    place: Place
    why: str
    welcomed: bool
    refused: Refused | None = None


ChannelEvent = (
    Wanted
    | Renewed
    | DoneWith
    | LinkLost
    | Welcomed
    | PageCame
    | PagesWritten
    | PagesEnded
    | TicketGone
    | PlaceLost
)
