"""AwaitedPages: the consumer's side — requests whose prompt another engine has computed.

A request waits here, outside the scheduler, while its pages come: blocks are allocated for them,
the pages are written between steps, and the blocks are published to the prefix cache, where the
scheduler then finds them as it finds any cached prefix. Whatever did not come is computed. The
blocks stay referenced until the request is admitted, so nothing evicts them before. No step waits
for any of this. Belongs to the engine core's thread.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from atom.kv_transfer_config.values import KVTransferConfig, LoadFailurePolicy
from atom.model_engine.block_manager import PrefixMatch
from atom.model_engine.kv_transfer.cache_pages import CachePages
from atom.model_engine.kv_transfer.channel import Channel
from atom.model_engine.kv_transfer.channel_events import PageCame, Place, PlaceLost
from atom.model_engine.kv_transfer.prefix_proof import prefix_hashes
from atom.model_engine.kv_transfer.pull_plan import PullPlan, plan_pull
from atom.model_engine.kv_transfer.pulls import Pull, PullTable
from atom.model_engine.request import Request
from atom.model_engine.transfer_legs import DecodeLeg, PullEnd, TransferOutcome, TransferResult
from atom.model_engine.wire.engine_protocol import FinishedRow, aborted_row, refused_row

logger = logging.getLogger(__name__)

_AVOID_SECONDS = {PullEnd.UNREACHABLE: 5.0, PullEnd.INCOMPATIBLE: 30.0}
_MOST_AVOIDED = 1024
# Ends by which the producer has no ticket any more, or cannot be told.
_NO_TICKET = (PullEnd.GONE, PullEnd.LOST, PullEnd.INCOMPATIBLE, PullEnd.UNREACHABLE)


@dataclass(slots=True)
class _Awaiting:
    """A request, and the blocks that its pages go to. tokens: of the prompt's whole blocks that the
    ticket may have, and one more, since a prefix never matches all tokens; blocks: of each group,
    from the plan's first index on; places: group and index of each page."""

    request: Request
    leg: DecodeLeg
    tokens: NDArray[np.int32]
    pull: Pull
    match: PrefixMatch | None = None
    plan: PullPlan | None = None
    blocks: list[list[int]] = field(default_factory=list)
    places: list[tuple[int, int]] = field(default_factory=list)

    @property
    def place(self) -> Place:
        return Place(self.leg.host, self.leg.port)

    @property
    def whole_tokens(self) -> NDArray[np.int32]:
        """Return the tokens of whole blocks."""
        return self.tokens[:-1]


@dataclass(frozen=True, slots=True)
class Joining:
    """A request that waits no longer. ended: set if it ends instead of being scheduled."""

    request: Request
    outcome: TransferOutcome
    ended: FinishedRow | None = None


class AwaitedPages:
    """Hold requests until their pages are here. received_bytes_total: of pages."""

    def __init__(
        self,
        cache: CachePages,
        channel: Channel,
        config: KVTransferConfig,
        layout: str,
    ) -> None:
        self._blocks, self._pages = cache.blocks, cache.access
        self._channel = channel
        self._config = config
        self._layout = layout
        self._awaiting: dict[str, _Awaiting] = {}  # by ticket
        self._tickets: dict[int, str] = {}  # by request
        self._joining: list[Joining] = []
        self._held: dict[int, list[list[int]]] = {}  # blocks of requests that are not admitted yet
        self._avoided: dict[Place, tuple[float, PullEnd]] = {}
        self._most_blocks = int(config.max_held_fraction * cache.blocks.pool.num_blocks)
        self._num_blocks = 0  # of all that wait
        self.pulls = PullTable(config.timeout_seconds, config.lease_seconds)
        self.received_bytes_total = 0

    # ---- requests -----------------------------------------------------------------------------

    @property
    def open_requests(self) -> tuple[int, ...]:
        """Return the ids of the requests that the scheduler has not seen yet."""
        return (*self._tickets, *(each.request.id for each in self._joining))

    def hold(self, request: Request, leg: DecodeLeg, now: float) -> None:
        """Take a request with a ticket; `take` gives it back."""
        given = [*request.prompt_token_ids, *request.output_token_ids]
        size = self._blocks.block_size
        usable = min(leg.num_tokens, len(request.prompt_token_ids) - 1) // size * size
        why = self._refusal(request, leg, now)
        if why is None:
            tokens = np.asarray(given, dtype=np.int32)
            match = self._blocks.match_prefix(tokens, request.cache_salt)
            missing = usable - match.num_blocks * size
            if missing < max(1, self._config.recompute_threshold):
                self._give_up(request, leg, TransferResult.LOCAL, "" if missing <= 0 else "short")
                return
            pull = self.pulls.begin(leg.ticket, now)
            if pull is not None:
                awaiting = _Awaiting(request, leg, tokens[: usable + 1], pull)
                self._awaiting[leg.ticket] = awaiting
                self._tickets[request.id] = leg.ticket
                return
            why = "ticket_in_use"
        elif why not in _AVOID_SECONDS:
            self._channel.done(Place(leg.host, leg.port), leg.ticket)
        self._join(request, self._outcome(request, TransferResult.RECOMPUTED, why))

    def _refusal(self, request: Request, leg: DecodeLeg, now: float) -> str | None:
        """Return why a ticket cannot be used, or None."""
        if request.lora is not None:
            return "adapter"
        if request.params.prompt_logprobs is not None:
            return "prompt_logprobs"
        until, end = self._avoided.get(Place(leg.host, leg.port), (now, PullEnd.LOST))
        if until > now and self._config.load_failure_policy is LoadFailurePolicy.RECOMPUTE:
            return end.value
        return None

    def _give_up(self, request: Request, leg: DecodeLeg, result: TransferResult, why: str) -> None:
        """Compute a prompt here, nearly all of which is cached; the producer frees its blocks."""
        self._channel.done(Place(leg.host, leg.port), leg.ticket)
        self._join(request, self._outcome(request, result, why))

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
            self.admitted([joining.request.id])
        return ended

    def void(self) -> None:
        """Compute the prompts of all that wait, since the cache is emptied."""
        for awaiting in list(self._awaiting.values()):
            self._release(awaiting)
            outcome = self._outcome(awaiting.request, TransferResult.RECOMPUTED, "cache_emptied")
            self._join(awaiting.request, outcome)
        self._awaiting.clear()
        self._tickets.clear()
        self.admitted(list(self._held))

    @property
    def next_event(self) -> float | None:
        """Return when a renewal or a deadline is due, or now if a request can join."""
        return 0.0 if self._joining else self.pulls.next_event

    def take(self) -> list[Joining]:
        """Return the requests that wait no longer; their blocks are held until `admitted`."""
        joining, self._joining = self._joining, []
        return joining

    @property
    def held_requests(self) -> tuple[int, ...]:
        """Return the requests that have joined and whose blocks are still held."""
        return tuple(self._held)

    def admitted(self, request_ids: Iterable[int]) -> None:
        """Drop the hold on the blocks of requests that have their own references now, or that
        ended."""
        for number in request_ids:
            for block_ids in self._held.pop(number, ()):
                self._blocks.pool.free(block_ids)
                self._num_blocks -= len(block_ids)

    # ---- the channel's events -----------------------------------------------------------------

    def welcomed(self, place: Place, now: float) -> None:
        self.pulls.welcome(self._tickets_of(place), now)

    def pages_came(self, events: list[PageCame], now: float) -> None:
        """Write the pages that are awaited, all of a turn together."""
        writes: dict[int, tuple[list[int], list[bytes]]] = {}
        for event in events:
            self._channel.consumed(event.place, len(event.payload))
            awaiting = self._awaiting.get(event.ticket)
            if awaiting is None:
                continue
            fits = event.number < len(awaiting.places) and self._fits(awaiting, event)
            if not self.pulls.page(event.ticket, event.number, now, whole=event.whole and fits):
                continue
            group, index = awaiting.places[event.number]
            assert awaiting.plan is not None
            block = awaiting.blocks[group][index - awaiting.plan.firsts[group]]
            ids, pages = writes.setdefault(group, ([], []))
            ids.append(block)
            pages.append(event.payload)
            self.received_bytes_total += len(event.payload)
        for group, (ids, pages) in writes.items():
            self._pages.write(group, ids, pages)

    def _fits(self, awaiting: _Awaiting, event: PageCame) -> bool:
        group, _ = awaiting.places[event.number]
        return len(event.payload) == self._pages.page_bytes(group)

    def pages_ended(self, ticket: str) -> None:
        self.pulls.complete(ticket)

    def ticket_gone(self, ticket: str) -> None:
        self.pulls.fail([ticket], PullEnd.GONE)

    def place_lost(self, lost: PlaceLost, now: float) -> None:
        """End the pulls from a producer that cannot be read from."""
        if lost.refused is not None:
            why = PullEnd.INCOMPATIBLE
            logger.warning(
                "kv transfer: the producer %s:%d cannot be read from: its %s is %r and ours %r; "
                "prompts are computed here until both engines agree",
                *(*lost.place, lost.refused.field, lost.refused.mine, lost.refused.theirs),
            )
        else:
            why = PullEnd.LOST if lost.welcomed else PullEnd.UNREACHABLE
            logger.warning("kv transfer: the producer %s:%d is lost: %s", *lost.place, lost.why)
        if why in _AVOID_SECONDS:
            if len(self._avoided) >= _MOST_AVOIDED:
                self._avoided.clear()
            self._avoided[lost.place] = (now + _AVOID_SECONDS[why], why)
        self.pulls.fail(self._tickets_of(lost.place), why)

    def _tickets_of(self, place: Place) -> list[str]:
        return [ticket for ticket, each in self._awaiting.items() if each.place == place]

    # ---- turns --------------------------------------------------------------------------------

    def turn(self, now: float, spare_blocks: int) -> None:
        """Ask for the pages of requests that have room, renew leases, and let requests join.
        spare_blocks: that stay free for running rows."""
        self.pulls.expire(now)
        for awaiting in self._awaiting.values():
            asks = awaiting.plan is None and not awaiting.pull.ended
            if asks and not self._ask(awaiting, spare_blocks):
                break  # first come, first served
        for ticket in self.pulls.due_renewals(now):
            self._channel.renew(self._awaiting[ticket].place, [ticket])
        for pull in self.pulls.take_ended():
            awaiting = self._awaiting.pop(pull.ticket)
            del self._tickets[awaiting.request.id]
            self._end(awaiting, now)

    def _ask(self, awaiting: _Awaiting, spare_blocks: int) -> bool:
        """Allocate blocks and ask for their pages; False if there is no room yet."""
        blocks, leg = self._blocks, awaiting.leg
        match = blocks.match_prefix(awaiting.tokens, awaiting.request.cache_salt)
        end = len(awaiting.whole_tokens) // blocks.block_size
        plan = plan_pull(blocks.groups, match, end, blocks.block_size)
        needed = plan.num_blocks + match.num_unheld
        if self._num_blocks and self._num_blocks + needed > self._most_blocks:
            return False
        if needed + spare_blocks > blocks.pool.num_free:
            return False
        for block_ids in match.block_ids:
            blocks.pool.share(block_ids)
        awaiting.match, awaiting.plan, awaiting.places = match, plan, plan.places()
        awaiting.blocks = [blocks.pool.allocate(plan.end - first) for first in plan.firsts]
        self._num_blocks += plan.num_blocks + sum(map(len, match.block_ids))
        awaiting.pull.num_pages = plan.num_blocks
        if not plan.num_blocks:  # computed here meanwhile
            awaiting.pull.ended = True
            return True
        hashes = prefix_hashes(
            awaiting.whole_tokens, blocks.block_size, awaiting.request.cache_salt, self._layout
        )
        first = match.num_blocks * blocks.block_size
        self._channel.want(awaiting.place, leg.ticket, plan.runs(hashes), first)
        return True

    def _end(self, awaiting: _Awaiting, now: float) -> None:
        """Publish the pages that came, and let the request join or end."""
        pull, request = awaiting.pull, awaiting.request
        if pull.end not in _NO_TICKET:
            self._channel.done(awaiting.place, awaiting.leg.ticket)
        tokens = self._publish(awaiting)
        reason = "" if pull.end is None else pull.end.value
        if pull.end is not None and self._config.load_failure_policy is LoadFailurePolicy.FAIL:
            self.admitted([request.id])
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

    def _publish(self, awaiting: _Awaiting) -> int:
        """Make the blocks whose pages came findable, and hold the prefix that they complete.
        Returns the number of tokens that this adds to the cached prefix."""
        plan, match = awaiting.plan, awaiting.match
        if plan is None or match is None:
            return 0
        held, came = [*match.block_ids], awaiting.pull.came
        numbers = {place: number for number, place in enumerate(awaiting.places)}
        for group, (first, block_ids) in enumerate(zip(plan.firsts, awaiting.blocks, strict=True)):
            rows = [row for row in range(len(block_ids)) if numbers[group, first + row] in came]
            self._blocks.publish_received(
                group,
                [(first + row, block_ids[row]) for row in rows],
                awaiting.whole_tokens[match.num_blocks * self._blocks.block_size :],
                match.num_blocks,
                match.last_hash,
            )
            whole = set(rows)
            lost = [block for row, block in enumerate(block_ids) if row not in whole]
            self._blocks.pool.free(lost)
            self._num_blocks -= len(lost)
            held.append([block_ids[row] for row in rows])
        self._held[awaiting.request.id] = held
        found = self._blocks.match_prefix(awaiting.tokens, awaiting.request.cache_salt)
        return max(0, found.num_blocks - match.num_blocks) * self._blocks.block_size

    def _release(self, awaiting: _Awaiting) -> None:
        """Free the blocks of a request that will not get its pages, and its ticket."""
        self.pulls.drop(awaiting.leg.ticket)
        self._channel.done(awaiting.place, awaiting.leg.ticket)
        if awaiting.match is not None:
            for block_ids in (*awaiting.match.block_ids, *awaiting.blocks):
                self._blocks.pool.free(block_ids)
                self._num_blocks -= len(block_ids)

    def _join(self, request: Request, outcome: TransferOutcome) -> None:
        self._joining.append(Joining(request, outcome))

    def _outcome(self, request: Request, result: TransferResult, why: str) -> TransferOutcome:
        return TransferOutcome(request.id, result, why)
