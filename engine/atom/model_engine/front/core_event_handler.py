"""CoreEventHandler: the events of the engine processes, each handed to the part that it concerns.

Runs on the event loop, once for each hop of the core manager's thread (`CoreEventHop`). Tokens go
to their readers, figures to the board of ranks, ends of processes to `CoreLink`, answers of control
calls to their callers, and all others to the lifecycle. Called by `AsyncLLMEngine`.
"""

from __future__ import annotations

from collections.abc import Iterable

from atom.model_engine.front.core_link import CoreLink
from atom.model_engine.front.engine_lifecycle import EngineLifecycle
from atom.model_engine.front.open_requests import OpenRequests
from atom.model_engine.front.pauses import Pauses
from atom.model_engine.front.step_delivery import StepDelivery
from atom.model_engine.front.utility_calls import UtilityCalls
from atom.model_engine.wire.core_port import (
    AnswerMoved,
    AnswerWentOn,
    CoreEvent,
    CoreFailed,
    CoreLost,
    RequestFailed,
    WeightsAre,
)
from atom.model_engine.wire.engine_protocol import RankStats, StreamBody, UtilityResponseBody
from atom.model_engine.wire.rank_answers import RankStatsBoard


class CoreEventHandler:
    def __init__(
        self,
        link: CoreLink,
        calls: UtilityCalls,
        pauses: Pauses,
        *,
        requests: OpenRequests,
        delivery: StepDelivery,
        rank_stats: RankStatsBoard,
        lifecycle: EngineLifecycle,
    ) -> None:
        self._link, self._calls, self._pauses = link, calls, pauses
        self._requests, self._delivery = requests, delivery
        self._rank_stats, self._lifecycle = rank_stats, lifecycle

    def handle(self, events: Iterable[CoreEvent]) -> None:
        """Handle the events that have come, in order. The tokens of steps that the loop is late for
        go to their readers together."""
        for event in events:
            if isinstance(event, StreamBody):
                if event.rank_stats is not None:
                    self._rank_stats.put(event.rank_stats)
                self._delivery.take(event)
            else:
                self._requests.deliver(self._delivery.taken())
                self._handle_other(event)
        self._requests.deliver(self._delivery.taken())

    def _handle_other(self, event: CoreEvent) -> None:
        """Handle an event that has no tokens."""
        if isinstance(event, RankStats):
            self._rank_stats.put(event)
        elif isinstance(event, CoreFailed):
            self._link.die(event.message)
        elif isinstance(event, CoreLost):
            self._rank_stats.lose(event.rank)
            self._link.lose(event)
        elif isinstance(event, RequestFailed):
            self._requests.fail_each([event.request_id], lambda: event.error)
        elif isinstance(event, UtilityResponseBody):
            self._calls.settle(event)
        elif isinstance(event, AnswerWentOn):
            self._requests.note_went_on()
        elif isinstance(event, AnswerMoved):
            self._requests.note_moved(event.request_id, event.move)
        elif isinstance(event, WeightsAre):
            self._pauses.weights_version = event.version
        else:
            self._lifecycle.note(event)
