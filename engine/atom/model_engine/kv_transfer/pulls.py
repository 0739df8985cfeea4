"""PullTable: the pages that a consumer waits for, until all came or it is certain that some will
not.

Pure policy: the time is a parameter, and pages are numbers. A pull ends once: when every page came,
when the producer has sent what it can, when the connection or the ticket is lost, or at its
deadline. Whatever arrives later is dropped. Called by the engine core's thread only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from atom.model_engine.transfer_legs import PullEnd

RENEWALS_PER_LEASE = 6


@dataclass(slots=True)
class Pull:
    """Track one ticket. num_pages: that were asked for, 0 before; came: numbers of pages that
    arrived whole; writing: pages that are being written; is_complete: the producer has sent all
    that it can. Times are in the clock of `now`, and None before the event."""

    ticket: str
    began: float
    deadline: float
    next_renewal: float
    num_pages: int = 0
    came: set[int] = field(default_factory=set)
    writing: int = 0
    is_complete: bool = False
    end: PullEnd | None = None
    ended: bool = False
    welcomed: float | None = None
    first_page: float | None = None
    last_page: float | None = None


class PullTable:
    """Hold the pulls of one engine by ticket. checksum_errors_total: pages that arrived damaged."""

    def __init__(self, timeout_seconds: float, lease_seconds: float) -> None:
        self._timeout_seconds = timeout_seconds
        self._renewal_seconds = lease_seconds / RENEWALS_PER_LEASE
        self._pulls: dict[str, Pull] = {}
        self.checksum_errors_total = 0

    def __len__(self) -> int:
        return len(self._pulls)

    def begin(self, ticket: str, now: float) -> Pull | None:
        """Begin to wait for the pages of a ticket, whose lease is renewed from now on; None if
        another request waits for them."""
        if ticket in self._pulls:
            return None
        pull = Pull(ticket, now, now + self._timeout_seconds, now + self._renewal_seconds)
        self._pulls[ticket] = pull
        return pull

    def welcome(self, tickets: Iterable[str], now: float) -> None:
        """Note that the producer of these accepted the connection."""
        for pull in self._some(tickets):
            if pull.welcomed is None:
                pull.welcomed = now

    def page(self, ticket: str, number: int, now: float, *, whole: bool) -> bool:
        """Note a page; returns whether its bytes are used. whole: its checksum agrees."""
        pull = self._pulls.get(ticket)
        if pull is None or pull.ended or number >= pull.num_pages or number in pull.came:
            return False
        if not whole:
            self.checksum_errors_total += 1
            pull.end = PullEnd.CHECKSUM
            return False
        pull.came.add(number)
        pull.first_page = now if pull.first_page is None else pull.first_page
        pull.last_page = now
        pull.ended = len(pull.came) == pull.num_pages
        return True

    def complete(self, ticket: str) -> None:
        """Note that the producer has sent all that it can; pages that are being written count."""
        for pull in self._some([ticket]):
            pull.is_complete = True
            self._end_complete(pull)

    def writing(self, ticket: str) -> None:
        """Note that a page is being written, until `page` or `fault` for it."""
        self._pulls[ticket].writing += 1

    def written(self, ticket: str, number: int, now: float) -> bool:
        """Note a page that was written; returns whether it is used."""
        pull = self._pulls.get(ticket)
        if pull is None:
            return False
        is_used = self.page(ticket, number, now, whole=True)
        pull.writing -= 1
        self._end_complete(pull)
        return is_used

    def damaged(self, ticket: str, number: int, now: float) -> None:
        """Note a page that was written, and turned out to be damaged."""
        pull = self._pulls.get(ticket)
        if pull is not None:
            self.page(ticket, number, now, whole=False)
            pull.writing -= 1
            self._end_complete(pull)

    def _end_complete(self, pull: Pull) -> None:
        if pull.is_complete and not pull.writing:
            self.fail([pull.ticket], PullEnd.MISSING)

    def fail(self, tickets: Iterable[str], why: PullEnd) -> None:
        """End pulls whose remaining pages will not arrive; a damaged page remains the reason."""
        for pull in self._some(tickets):
            if not pull.ended:
                pull.ended, pull.end = True, pull.end or why

    def fault(self, tickets: Iterable[str]) -> None:
        """End pulls that this engine failed to take pages of; none of their pages is used."""
        for pull in self._some(tickets):
            pull.ended, pull.end = True, PullEnd.FAULT
            pull.came.clear()

    def expire(self, now: float) -> None:
        """End the pulls that are past their deadline."""
        late = [pull.ticket for pull in self._pulls.values() if pull.deadline <= now]
        self.fail(late, PullEnd.TIMEOUT)

    def due_renewals(self, now: float) -> Iterator[str]:
        """Yield the tickets to renew now; each is due again later."""
        for pull in self._pulls.values():
            if pull.next_renewal <= now and not pull.ended:
                pull.next_renewal = now + self._renewal_seconds
                yield pull.ticket

    def take_ended(self) -> list[Pull]:
        """Remove and return the pulls that have ended."""
        ended = [pull for pull in self._pulls.values() if pull.ended]
        for pull in ended:
            del self._pulls[pull.ticket]
        return ended

    def drop(self, ticket: str) -> None:
        """Forget a pull whose request has ended."""
        self._pulls.pop(ticket, None)

    @property
    def next_event(self) -> float | None:
        """Return when a deadline or a renewal is due; None without a pull."""
        times = [min(pull.deadline, pull.next_renewal) for pull in self._pulls.values()]
        return min(times, default=None)

    def _some(self, tickets: Iterable[str]) -> list[Pull]:
        return [self._pulls[each] for each in tickets if each in self._pulls]
