"""AwaitedPages: the consumer's side — requests whose prompt another engine has computed.

A request waits here, outside the scheduler, while its pages come: blocks are allocated for them,
the pages are written between steps, and the blocks are published to the prefix cache, where the
scheduler then finds them as it finds any cached prefix. Whatever did not come is computed. The
blocks stay referenced until the request is admitted, so nothing evicts them before. No step waits
for any of this. Belongs to the engine core's thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from atom.kv_transfer_config.values import KVTransferConfig, LoadFailurePolicy
from atom.model_engine.block_manager import PrefixMatch
from atom.model_engine.kv_transfer.awaiting import (
    Awaiting,
    Joining,
    SpentTickets,
    describe_images,
    images_of,
    keep_state,
    names_of,
)
from atom.model_engine.kv_transfer.cache_pages import CachePages
from atom.model_engine.kv_transfer.channel import Channel
from atom.model_engine.kv_transfer.channel_events import (
    PageCame,
    PagesWritten,
    Place,
    PlaceLost,
)
from atom.model_engine.kv_transfer.held_blocks import HeldBlocks
from atom.model_engine.kv_transfer.page_writer import PageWrite, PageWriter
from atom.model_engine.kv_transfer.prefix_proof import prefix_hashes
from atom.model_engine.kv_transfer.pulling.avoided_places import AvoidedPlaces
from atom.model_engine.kv_transfer.pulling.pull_plan import PullRoom, plan_pull
from atom.model_engine.kv_transfer.pulling.pull_speeds import PullSpeeds
from atom.model_engine.kv_transfer.pulls import PullTable
from atom.model_engine.request import Request
from atom.model_engine.transfer_legs import DecodeLeg, PullEnd, TransferOutcome, TransferResult
from atom.model_engine.wire.engine_protocol import FinishedRow, aborted_row, refused_row

logger = logging.getLogger(__name__)

# Ends by which the producer has no ticket any more, or cannot be told.
_NO_TICKET = (PullEnd.GONE, PullEnd.LOST, PullEnd.INCOMPATIBLE, PullEnd.UNREACHABLE)


class AwaitedPages:
    """Hold requests until their pages are here. held: the blocks of requests that are not admitted
    yet; received_bytes_total: of pages; speeds: of the producers."""

    def __init__(
        self,
        cache: CachePages,
        channel: Channel,
        config: KVTransferConfig,
        layout: str,
        clock: Callable[[], float],
    ) -> None:
        self._blocks, self._pages = cache.blocks, cache.access
        self._vision, self._adapter_of = cache.vision, cache.adapter_of
        self._writer = PageWriter(cache.access, channel.tell)
        self._channel = channel
        self._config = config
        self._layout = layout
        self._awaiting: dict[str, Awaiting] = {}  # by ticket
        self._tickets: dict[int, str] = {}  # by request
        self._joining: list[Joining] = []
        self.held = HeldBlocks(cache.blocks)
        self._avoided = AvoidedPlaces()
        self.speeds = PullSpeeds(clock)
        num_blocks = cache.blocks.pool.num_blocks
        self._room = PullRoom.of(num_blocks, config.max_held_fraction)
        self._spent = SpentTickets()
        self.pulls = PullTable(config.timeout_seconds, config.lease_seconds)
        self.received_bytes_total = 0

    # ---- requests -----------------------------------------------------------------------------

    @property
    def open_requests(self) -> tuple[int, ...]:
        """Return the ids of the requests that the scheduler has not seen yet."""
        return (*self._tickets, *(each.request.id for each in self._joining))

    def hold(self, request: Request, leg: DecodeLeg, now: float) -> None:
        """Take a request with a ticket; `take` gives it back."""
        try:
            self._hold(request, leg, now)
        except Exception:
            logger.exception("kv transfer: request %d cannot wait for its pages", request.id)
            self.drop([request.id])
            if leg.ticket not in self._awaiting:
                self.speeds.end(leg.ticket)
            self._give_up(request, leg, TransferResult.RECOMPUTED, PullEnd.FAULT.value)

    def _hold(self, request: Request, leg: DecodeLeg, now: float) -> None:
        size = self._blocks.block_size
        usable = min(leg.num_tokens, len(request.prompt_token_ids) - 1) // size * size
        why = self._refusal(request, leg, now)
        if why is None:
            images = images_of(request, self._vision)
            tokens = names_of(request, images, size)
            match = self._blocks.match_prefix(tokens, request.cache_salt, request.lora)
            missing = usable - match.num_blocks * size
            if missing < max(1, self._config.recompute_threshold):
                self._give_up(request, leg, TransferResult.LOCAL, "" if missing <= 0 else "short")
                return
            if not self._pays(leg, match, missing):
                self._give_up(request, leg, TransferResult.RECOMPUTED, "slower")
                return
            pull = self.pulls.begin(leg.ticket, now)
            if pull is not None:
                awaiting = Awaiting(request, leg, tokens[: usable + 1], pull, images)
                self._awaiting[leg.ticket] = awaiting
                self._tickets[request.id] = leg.ticket
                return
            why = "ticket_in_use"
        else:
            self.decline(leg, now)
        self._join(request, self._outcome(request, TransferResult.RECOMPUTED, why))

    def decline(self, leg: DecodeLeg, now: float) -> None:
        """Give back a ticket that no request will use, so that its producer keeps no blocks for it
        until the lease ends."""
        place = Place(leg.host, leg.port)
        if leg.ticket not in self._awaiting and self._avoided.reason(place, now) is None:
            self._give_back(place, leg.ticket)

    def _refusal(self, request: Request, leg: DecodeLeg, now: float) -> str | None:
        """Return why a ticket cannot be used, or None."""
        if self._adapter_of(request.lora) is None:
            return "adapter"
        if leg.ticket in self._spent:
            return PullEnd.GONE.value
        if request.params.prompt_logprobs is not None:
            return "prompt_logprobs"
        end = self._avoided.reason(Place(leg.host, leg.port), now)
        if end is not None and self._config.load_failure_policy is LoadFailurePolicy.RECOMPUTE:
            return end.value
        return None

    def _pays(self, leg: DecodeLeg, match: PrefixMatch, missing: int) -> bool:
        """Predict whether the pages of `missing` tokens are worth the time of reading them."""
        if leg.ticket in self._awaiting:
            return True  # of another request, whose pull this one may not end
        end = match.num_blocks + missing // self._blocks.block_size
        size = plan_pull(self._blocks, match, end).size_bytes(self._pages.page_bytes)
        return self.speeds.pays(leg.ticket, Place(leg.host, leg.port), size, missing)

    def _give_up(self, request: Request, leg: DecodeLeg, result: TransferResult, why: str) -> None:
        """Compute a prompt here; the producer frees its blocks."""
        self._give_back(Place(leg.host, leg.port), leg.ticket)
        self._join(request, self._outcome(request, result, why))

    def _give_back(self, place: Place, ticket: str) -> None:
        """Give a ticket back; if that fails, its producer frees it at the end of its lease."""
        try:
            self._channel.done(place, ticket)
        except Exception:
            logger.exception("kv transfer: ticket %s could not be given back", ticket)

    def _renew(self, place: Place, ticket: str) -> None:
        """Renew a lease; if that fails, it is renewed later."""
        try:
            self._channel.renew(place, [ticket])
        except Exception:
            logger.exception("kv transfer: the lease of ticket %s could not be renewed", ticket)

    def drop(self, request_ids: Iterable[int]) -> list[FinishedRow]:
        """Abort the requests of this list that wait here."""
        ended, numbers = [], set(request_ids)
        for number in numbers:
            ticket = self._tickets.pop(number, None)
            if ticket is not None:
                self._release(self._awaiting.pop(ticket))
                ended.append(aborted_row(number))
        for joining in [each for each in self._joining if each.request.id in numbers]:
            self._joining.remove(joining)
            ended.append(aborted_row(joining.request.id))
            self.held.admitted([joining.request.id])
        return ended

    def void(self) -> None:
        """Compute the prompts of all that wait, since the cache is emptied."""
        for awaiting in list(self._awaiting.values()):
            self._release(awaiting)
            outcome = self._outcome(awaiting.request, TransferResult.RECOMPUTED, "cache_emptied")
            self._join(awaiting.request, outcome)
        self._awaiting.clear()
        self._tickets.clear()
        self.held.admitted(self.held.requests)

    @property
    def next_event(self) -> float | None:
        """Return when a renewal or a deadline is due, or now if a request can join."""
        return 0.0 if self._joining else self.pulls.next_event

    def take(self) -> list[Joining]:
        """Return the requests that wait no longer; `held` keeps their blocks."""
        joining, self._joining = self._joining, []
        return joining

    # ---- the channel's events -----------------------------------------------------------------

    def welcomed(self, place: Place, now: float) -> None:
        self.pulls.welcome(self._tickets_of(place), now)

    def pages_came(self, events: list[PageCame], now: float) -> None:
        """Write the pages that are awaited, all of a turn together."""
        writes: list[PageWrite] = []
        for event in events:
            write = self._write_of(event, now)
            if write is None:
                self._channel.consumed(event)
            else:
                writes.append(write)
        if writes and (news := self._writer.write(writes)) is not None:
            self.pages_written(news, now)

    def pages_written(self, news: PagesWritten, now: float) -> None:
        """Note pages that are in their blocks."""
        self.pulls.fault({page.ticket for page in news.failed})
        for page in news.written:
            self.speeds.came(page.ticket, len(page.payload))
            if self.pulls.written(page.ticket, page.number, now):
                self.received_bytes_total += len(page.payload)
        for page in news.damaged:
            self.pulls.damaged(page.ticket, page.number, now)
        for page in (*news.written, *news.failed, *news.damaged):
            self._channel.consumed(page)

    def _write_of(self, event: PageCame, now: float) -> PageWrite | None:
        """Return where a page is written; None for one that is not awaited or is damaged."""
        awaiting = self._awaiting.get(event.ticket)
        if awaiting is None or awaiting.pull.ended or event.number in awaiting.pull.came:
            return None
        if event.number >= len(awaiting.places):
            return None
        group, index = awaiting.places[event.number]
        if not event.whole or len(event.payload) != self._pages.page_bytes(group):
            self.pulls.page(event.ticket, event.number, now, whole=False)
            return None
        assert awaiting.plan is not None
        block = awaiting.state
        if group < len(awaiting.blocks):
            block = awaiting.blocks[group][index - awaiting.plan.firsts[group]]
        assert block is not None
        self.pulls.writing(event.ticket)
        return PageWrite(group, block, event)

    def pages_ended(self, ticket: str) -> None:
        self.pulls.complete(ticket)

    def ticket_gone(self, ticket: str) -> None:
        self.pulls.fail([ticket], PullEnd.GONE)

    def place_lost(self, lost: PlaceLost, now: float) -> None:
        """End the pulls from a producer that cannot be read from."""
        why = self._avoided.lost(lost, now)
        self.pulls.fail(self._tickets_of(lost.place), why)

    def _tickets_of(self, place: Place) -> list[str]:
        return [ticket for ticket, each in self._awaiting.items() if each.place == place]

    # ---- turns --------------------------------------------------------------------------------

    def turn(self, now: float) -> None:
        """Ask for the pages of requests that have room, renew leases, and let requests join."""
        self.pulls.expire(now)
        for awaiting in self._awaiting.values():
            asks = awaiting.plan is None and not awaiting.pull.ended
            try:
                if asks and not self._ask(awaiting):
                    break  # first come, first served
            except Exception:
                logger.exception("kv transfer: pages could not be asked for")
                self.pulls.fault([awaiting.leg.ticket])
        for ticket in self.pulls.due_renewals(now):
            self._renew(self._awaiting[ticket].place, ticket)
        for pull in self.pulls.take_ended():
            awaiting = self._awaiting.pop(pull.ticket)
            del self._tickets[awaiting.request.id]
            try:
                self._end(awaiting, now)
            except Exception:
                logger.exception("kv transfer: the pages of a request could not be published")
                self._free(awaiting)
                pull.end = PullEnd.FAULT
                self._finish(awaiting, 0, now)

    def _ask(self, awaiting: Awaiting) -> bool:
        """Allocate blocks and ask for their pages; False if there is no room yet."""
        blocks, leg = self._blocks, awaiting.leg
        match = awaiting.match_in(blocks)
        end = len(awaiting.whole_tokens) // blocks.block_size
        plan = plan_pull(blocks, match, end)
        needed = plan.num_blocks + match.num_unheld
        if not self._room.takes(
            needed, num_held=self.held.num_blocks, num_free=blocks.pool.num_free
        ):
            return False
        if plan.with_states and blocks.checkpoints is not None:
            awaiting.state = blocks.checkpoints.take()
            if awaiting.state is None:
                return False
        awaiting.match, awaiting.plan, awaiting.places = match, plan, plan.places()
        for block_ids in match.block_ids:
            blocks.pool.share(block_ids)
            self.held.note(awaiting.shared, block_ids)
        for first in plan.firsts:
            self.held.note(awaiting.blocks, blocks.pool.allocate(plan.end - first))
        awaiting.pull.num_pages = plan.num_pages
        if not plan.num_pages:  # computed here meanwhile
            awaiting.pull.ended = True
            return True
        adapter = self._adapter_of(awaiting.request.lora)
        named = awaiting.whole_tokens, blocks.block_size, awaiting.request.cache_salt
        hashes = prefix_hashes(*named, self._layout, adapter or "")
        first = match.num_blocks * blocks.block_size
        self.speeds.begin(leg.ticket, awaiting.place, plan.size_bytes(self._pages.page_bytes))
        self._channel.want(awaiting.place, leg.ticket, plan.runs(hashes), first)
        return True

    def _end(self, awaiting: Awaiting, now: float) -> None:
        """Publish the pages that came, and let the request join or end."""
        self.speeds.end(awaiting.leg.ticket)
        self._spend(awaiting)
        self._settle(awaiting)
        if awaiting.pull.end not in _NO_TICKET:
            self._give_back(awaiting.place, awaiting.leg.ticket)
        self._finish(awaiting, self._publish(awaiting), now)

    def _finish(self, awaiting: Awaiting, tokens: int, now: float) -> None:
        """Let a request join or end. tokens: of its prefix that pages have completed."""
        pull, request = awaiting.pull, awaiting.request
        reason = "" if pull.end is None else pull.end.value
        if pull.end is not None and self._config.load_failure_policy is LoadFailurePolicy.FAIL:
            self.held.admitted([request.id])
            row = refused_row(request.id, reason)
            outcome = self._outcome(request, TransferResult.FAILED, reason)
            self._joining.append(Joining(request, outcome, row))
            return
        result = TransferResult.TRANSFERRED if tokens else TransferResult.RECOMPUTED
        if pull.end is None and not tokens:
            result = TransferResult.LOCAL
        first = now if pull.first_page is None else pull.first_page
        outcome = TransferOutcome(
            request.id,
            result,
            reason,
            tokens,
            seconds=now - pull.began,
            handshake_seconds=(now if pull.welcomed is None else pull.welcomed) - pull.began,
            copy_seconds=now - first,
        )
        self._join(request, outcome)

    def _publish(self, awaiting: Awaiting) -> int:
        """Make the blocks whose pages came findable, and hold the prefix that they complete.
        Returns the number of tokens that this adds to the cached prefix."""
        plan, match = awaiting.plan, awaiting.match
        if plan is None or match is None or awaiting.pull.end is PullEnd.FAULT:
            self._free(awaiting)  # after a fault, perhaps only a part of them was taken
            return 0
        came = awaiting.pull.came
        numbers = {place: number for number, place in enumerate(awaiting.places)}
        received = [
            [
                (first + row, block)
                for row, block in enumerate(block_ids)
                if numbers[group, first + row] in came
            ]
            for group, (first, block_ids) in enumerate(
                zip(plan.firsts, awaiting.blocks, strict=True)
            )
        ]
        first_token = match.num_blocks * self._blocks.block_size
        tokens = awaiting.whole_tokens[first_token:]
        if awaiting.images is not None and self._blocks.tells:
            describe_images(self._blocks, awaiting, first_token)
        lora = awaiting.request.lora
        self._blocks.publish_received(received, tokens, match.num_blocks, match.last_hash, lora)
        pinned = keep_state(self._blocks, awaiting)
        for group, blocks in enumerate(received):
            kept = [block for _, block in blocks]
            lost = sorted(set(awaiting.blocks[group]).difference(kept))
            awaiting.blocks[group] = kept
            self.held.free(lost)
        found = awaiting.match_in(self._blocks)
        self.held.join(awaiting.request.id, [*awaiting.shared, *awaiting.blocks], pinned)
        return max(0, found.num_blocks - match.num_blocks) * self._blocks.block_size

    def _release(self, awaiting: Awaiting) -> None:
        """Free the blocks of a request that will not get its pages, and its ticket."""
        self.speeds.end(awaiting.leg.ticket)
        self._spend(awaiting)
        self.pulls.drop(awaiting.leg.ticket)
        self._give_back(awaiting.place, awaiting.leg.ticket)
        self._free(awaiting)

    def _settle(self, awaiting: Awaiting) -> None:
        """Wait for pages that are being written to blocks which may be freed."""
        if awaiting.pull.writing:
            self._writer.settle()

    def _spend(self, awaiting: Awaiting) -> None:
        """Remember a ticket whose pages may still be under way: its numbers would mean other blocks
        to another request."""
        if awaiting.plan is not None:
            self._spent.add(awaiting.leg.ticket)

    def _free(self, awaiting: Awaiting) -> None:
        """Drop the references that a request has taken."""
        self._settle(awaiting)
        taken = [*awaiting.shared, *awaiting.blocks]
        awaiting.shared, awaiting.blocks = [], []
        if awaiting.state is not None and self._blocks.checkpoints is not None:
            self._blocks.checkpoints.give_back(awaiting.state)
            awaiting.state = None
        for block_ids in taken:
            self.held.free(block_ids)

    def close(self) -> None:
        """Write the pages that came, and stop."""
        self._writer.close()

    def _join(self, request: Request, outcome: TransferOutcome) -> None:
        self._joining.append(Joining(request, outcome))

    def _outcome(self, request: Request, result: TransferResult, why: str) -> TransferOutcome:
        return TransferOutcome(request.id, result, why)
