"""Channel: the connections to other engines, as the engine core's thread uses them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from atom.model_engine.kv_transfer.channel_events import ChannelEvent, PageCame, Place
from atom.model_engine.kv_transfer.frames import Frame, Run
from atom.model_engine.page_access import PageContent


class Channel(Protocol):
    """Send and take, without ever waiting. wake_fd: readable when `take_events` has an event."""

    @property
    def wake_fd(self) -> int: ...

    def take_events(self) -> list[ChannelEvent]:
        """Return all events so far, in the order of their arrival."""
        ...

    def tell(self, event: ChannelEvent) -> None:
        """Add an event of this engine's own, from any thread."""
        ...

    def want(self, place: Place, ticket: str, runs: Sequence[Run], first_token: int) -> None:
        """Ask a producer for pages; `PlaceLost` follows if it cannot be reached."""
        ...

    def renew(self, place: Place, tickets: Sequence[str]) -> None:
        """Extend leases of a producer."""
        ...

    def done(self, place: Place, ticket: str) -> None:
        """Give a ticket back, whether its pages were read or not."""
        ...

    def consumed(self, page: PageCame) -> None:
        """Note that the bytes of a page have been used or dropped, in the order of arrival."""
        ...

    def answer(self, link: int, frame: Frame) -> None:
        """Send a frame to a consumer; nothing if it is gone."""
        ...

    def reads_device(self, link: int) -> bool:
        """Return whether a consumer reads pages from this engine's device."""
        ...

    def send_page(self, link: int, ticket: str, number: int, page: PageContent) -> None:
        """Send a page with its checksum, which another thread computes, to a consumer; nothing if
        it is gone. number: in the ticket's want."""
        ...

    def unsent_bytes(self, link: int) -> int:
        """Return the bytes of pages that wait for a consumer to read."""
        ...

    def close(self) -> None:
        """End all connections."""
        ...
