"""Channel: the connections to other engines, as the engine core's thread uses them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from atom.model_engine.kv_transfer.channel_events import ChannelEvent, Place
from atom.model_engine.kv_transfer.frames import Frame, Run


class Channel(Protocol):
    """Send and take, without ever waiting. wake_fd: readable when `take_events` has an event."""

    @property
    def wake_fd(self) -> int: ...

    def take_events(self) -> list[ChannelEvent]:
        """Return all events so far, in the order of their arrival."""
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

    def consumed(self, place: Place, num_bytes: int) -> None:
        """Note that the bytes of pages from this producer have been used or dropped."""
        ...

    def answer(self, link: int, frame: Frame, payload: bytes | memoryview = b"") -> None:
        """Send a frame, and perhaps a page behind it, to a consumer; nothing if it is gone."""
        ...

    def unsent_bytes(self, link: int) -> int:
        """Return the bytes of pages that wait for a consumer to read."""
        ...

    def close(self) -> None:
        """End all connections."""
        ...
