"""KVTransfer: one engine core's exchange of KV pages with other engines.

Composes the side channel, the pages that it keeps for others and the requests that wait for pages.
EngineCore calls `turn` once per iteration and sleeps no longer than `seconds_left`. Everything here
but the channel's own thread belongs to the engine core's thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

import msgspec

from atom.kv_transfer_config.values import KVTransferConfig
from atom.model_engine.kv_transfer.awaited_pages import AwaitedPages
from atom.model_engine.kv_transfer.awaiting import Joining
from atom.model_engine.kv_transfer.cache_pages import CachePages
from atom.model_engine.kv_transfer.channel import Channel
from atom.model_engine.kv_transfer.channel_events import (
    ChannelEvent,
    DoneWith,
    LinkLost,
    PageCame,
    PagesEnded,
    PagesWritten,
    PlaceLost,
    Renewed,
    TicketGone,
    Wanted,
    Welcomed,
)
from atom.model_engine.kv_transfer.kept_pages import KeptPages, KeptPrefix
from atom.model_engine.kv_transfer.pulling.pull_speeds import PullSpeeds
from atom.model_engine.kv_transfer.tickets import TicketTable
from atom.model_engine.request import FinishReason, Request
from atom.model_engine.transfer_legs import DecodeLeg, PrefillLeg, TicketNote
from atom.model_engine.wire.core_stats import StatsBody
from atom.model_engine.wire.engine_protocol import FinishedRow

logger = logging.getLogger(__name__)

_HELD_TOO_MUCH = (
    "the pages of earlier prefill legs take their share of the KV cache "
    "(--kv-transfer-max-held-fraction); send the request again"
)


class KVTransfer:
    """Exchange pages. wake_fd: readable when `turn` has an event to process; layout: the digest of
    this engine's cache layout."""

    def __init__(
        self,
        config: KVTransferConfig,
        cache: CachePages,
        channel: Channel,
        note: TicketNote,
        clock: Callable[[], float],
    ) -> None:
        """note: of a prefill leg that keeps nothing, with this engine's place and layout."""
        self.layout = note.layout
        self._config = config
        self._clock = clock
        self._channel = channel
        most = int(config.max_held_fraction * cache.blocks.pool.num_blocks)
        tickets: TicketTable[KeptPrefix] = TicketTable(config.lease_seconds, most)
        self.kept = KeptPages(cache, channel, tickets, note, clock)
        self._awaited = AwaitedPages(cache, channel, config, note.layout, clock)

    @property
    def speeds(self) -> PullSpeeds:
        """Return the speeds of the producers."""
        return self._awaited.speeds

    @property
    def wake_fd(self) -> int:
        return self._channel.wake_fd

    @property
    def open_requests(self) -> tuple[int, ...]:
        """Return the ids of the requests that the scheduler has not seen yet."""
        return self._awaited.open_requests

    @property
    def seconds_left(self) -> float | None:
        """Return for how long nothing is due; None if an event comes first."""
        now, times = self._clock(), (self.kept.tickets.next_expiry, self._awaited.next_event)
        waits = [max(0.0, each - now) for each in times if each is not None]
        if (sending := self.kept.seconds_to_send) is not None:
            waits.append(sending)
        return min(waits, default=None)

    def takes(self, request: Request) -> bool:
        """Return whether a request waits here before it is scheduled; else it may be added now."""
        return isinstance(request.kv_transfer, DecodeLeg) and self._config.role.consumes

    def hold(self, request: Request) -> None:
        """Take a decode leg; `turn` gives it back."""
        assert isinstance(request.kv_transfer, DecodeLeg)
        self._awaited.hold(request, request.kv_transfer, self._clock())

    def refusal(self, request: Request) -> FinishedRow | None:
        """Reserve room for a prefill leg; returns the end of one that there is no room for."""
        if not isinstance(request.kv_transfer, PrefillLeg) or self.kept.admit(request):
            return None
        return FinishedRow(request.id, FinishReason.ABORT.value, _HELD_TOO_MUCH, 0)

    def give_back(self, request: Request) -> None:
        """Give back the room, the blocks and the ticket of a request that could not be queued."""
        self.kept.tickets.withdraw(request.id)
        dropped = self._awaited.drop([request.id])
        self._awaited.held.admitted([request.id])
        if not dropped and self.takes(request):
            assert isinstance(request.kv_transfer, DecodeLeg)
            self._awaited.decline(request.kv_transfer, self._clock())

    def drop(self, request_ids: Iterable[int]) -> list[FinishedRow]:
        """Abort the requests of this list that wait here."""
        return self._awaited.drop(list(request_ids))

    def turn(self, waiting: Callable[[int], bool]) -> list[Joining]:
        """Process the channel's events; return the requests that wait no longer. waiting: whether a
        request that has joined is still not admitted."""
        now = self._clock()
        self._take_events(now)
        self.kept.turn(now)
        self._awaited.turn(now)
        admitted = [each for each in self._awaited.held.requests if not waiting(each)]
        self._awaited.held.admitted(admitted)
        return self._awaited.take()

    def release_waiting(self) -> bool:
        """Give up the hold on blocks of requests that have joined and are not admitted: nothing
        runs, and the first of the queue needs them. Returns whether there were any."""
        held = self._awaited.held.requests
        self._awaited.held.admitted(held)
        return bool(held)

    def void(self) -> None:
        """End every ticket and let every request join, since the cache is emptied."""
        self.kept.void()
        self._awaited.void()

    def told_in(self, stats: StatsBody) -> StatsBody:
        """Return a core's statistics with the requests that wait here, and the counters of the
        exchange."""
        tickets = self.kept.tickets
        return msgspec.structs.replace(
            stats,
            requests_waiting=stats.requests_waiting + len(self._awaited.open_requests),
            kv_transfer_tickets=len(tickets),
            kv_transfer_expired_total=tickets.expired_total,
            kv_transfer_checksum_errors_total=self._awaited.pulls.checksum_errors_total,
            kv_transfer_sent_bytes_total=self.kept.sent_bytes_total,
            kv_transfer_received_bytes_total=self._awaited.received_bytes_total,
        )

    def close(self) -> None:
        self.kept.close()
        self._awaited.close()
        self._channel.close()

    def _take_events(self, now: float) -> None:
        pages: list[PageCame] = []
        for event in self._channel.take_events():
            if isinstance(event, PageCame):
                pages.append(event)
                continue
            self._take_pages(pages, now)  # in the order of their arrival
            pages = []
            try:
                self._take_event(event, now)
            except Exception:  # of one peer or request; leases and deadlines bound what it costs
                logger.exception("kv transfer: a %s was dropped", type(event).__name__)
        self._take_pages(pages, now)

    def _take_pages(self, pages: list[PageCame], now: float) -> None:
        if not pages:
            return
        try:
            self._awaited.pages_came(pages, now)
        except Exception:
            logger.exception("kv transfer: pages were dropped")
            self._awaited.pulls.fault({each.ticket for each in pages})

    def _take_event(self, event: ChannelEvent, now: float) -> None:
        match event:
            case Wanted():
                self.kept.wanted(event.link, event.want, now)
            case Renewed():
                self.kept.renewed(event.link, event.tickets, now)
            case DoneWith():
                self.kept.done(event.ticket)
            case LinkLost():
                self.kept.link_lost(event.link)
            case Welcomed():
                self._awaited.welcomed(event.place, now)
            case PagesWritten():
                self._awaited.pages_written(event, now)
            case PagesEnded():
                self._awaited.pages_ended(event.ticket)
            case TicketGone():
                self._awaited.ticket_gone(event.ticket)
            case PlaceLost():
                self._awaited.place_lost(event, now)
