"""TicketTable: the blocks that a producer keeps after its prefill legs have ended.

Pure policy: the time is a parameter, and blocks are opaque. A ticket is granted when a prefill leg
ends, is read once, and ends when the consumer is done, when its lease runs out, or when the cache
that it names is emptied. Every way out returns the blocks exactly once. Called by the engine core's
thread only.

Invariants: the blocks of all tickets and of the legs that are promised one never exceed
`most_blocks`; no ticket outlives its lease, which only `renew` and `read` extend.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Generic, TypeVar

Held = TypeVar("Held")


class TicketState(Enum):
    GRANTED = auto()
    READ = auto()


@dataclass(slots=True)
class _Ticket(Generic[Held]):
    held: Held
    num_blocks: int
    expires: float
    state: TicketState = TicketState.GRANTED


class GoneError(Exception):
    """Raised for a ticket that cannot be read. The text is one word for the consumer."""


class TicketTable(Generic[Held]):
    """Hold tickets by name. expired_total: tickets whose lease ran out."""

    def __init__(self, lease_seconds: float, most_blocks: int) -> None:
        """most_blocks: of all tickets together, those of open prefill legs included."""
        self._lease_seconds = lease_seconds
        self._most_blocks = most_blocks
        self._tickets: dict[str, _Ticket[Held]] = {}
        self._promised: dict[int, int] = {}  # blocks of open prefill legs, by request
        self._num_blocks = 0  # of both
        self.expired_total = 0

    def __len__(self) -> int:
        return len(self._tickets)

    @property
    def num_blocks(self) -> int:
        """Count the blocks of all tickets and promises."""
        return self._num_blocks

    def could_ever_hold(self, num_blocks: int) -> bool:
        """Return whether one ticket may keep this number of blocks."""
        return num_blocks <= self._most_blocks

    def promise(self, request_id: int, num_blocks: int) -> bool:
        """Reserve room for the blocks of a prefill leg; False if tickets take too much already."""
        if self._num_blocks + num_blocks > self._most_blocks:
            return False
        self._promised[request_id] = num_blocks
        self._num_blocks += num_blocks
        return True

    def withdraw(self, request_id: int) -> bool:
        """Give a leg's room back, since it ended; returns whether it had any."""
        num_blocks = self._promised.pop(request_id, None)
        self._num_blocks -= num_blocks or 0
        return num_blocks is not None

    def grant(self, name: str, held: Held, num_blocks: int, now: float) -> None:
        """Keep the blocks of a leg whose promise was withdrawn just before, which had room for as
        many."""
        assert name not in self._tickets, "tickets have names of their own"
        self._tickets[name] = _Ticket(held, num_blocks, now + self._lease_seconds)
        self._num_blocks += num_blocks

    def read(self, name: str, now: float) -> Held:
        """Begin to read a ticket, which only one consumer may do. Raises `GoneError`."""
        ticket = self._tickets.get(name)
        if ticket is None:
            raise GoneError("unknown")
        if ticket.expires <= now:
            raise GoneError("expired")
        if ticket.state is TicketState.READ:
            raise GoneError("read")
        ticket.state = TicketState.READ
        ticket.expires = now + self._lease_seconds
        return ticket.held

    def holds(self, name: str) -> bool:
        """Return whether a ticket has not ended."""
        return name in self._tickets

    def renew(self, names: Iterable[str], now: float) -> list[str]:
        """Extend the leases of these tickets; returns the names of those that have ended."""
        gone = []
        for name in names:
            ticket = self._tickets.get(name)
            if ticket is None or ticket.expires <= now:
                gone.append(name)
            else:
                ticket.expires = now + self._lease_seconds
        return gone

    def end(self, name: str) -> list[Held]:
        """End a ticket; returns its blocks, or nothing if it has ended."""
        ticket = self._tickets.pop(name, None)
        if ticket is None:
            return []
        self._num_blocks -= ticket.num_blocks
        return [ticket.held]

    def expire(self, now: float) -> list[Held]:
        """End the tickets whose lease has run out; returns their blocks."""
        over = [name for name, ticket in self._tickets.items() if ticket.expires <= now]
        self.expired_total += len(over)
        return [held for name in over for held in self.end(name)]

    def void(self) -> list[Held]:
        """End every ticket, since the cache is emptied; returns their blocks."""
        return [held for name in list(self._tickets) for held in self.end(name)]

    @property
    def next_expiry(self) -> float | None:
        """Return when the next lease runs out; None without a ticket."""
        return min((each.expires for each in self._tickets.values()), default=None)
