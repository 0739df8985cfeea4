"""RequestDesk: the requests of one engine core, from their arrival to their place in a queue.

Composes the pipeline with the exchange of KV pages, so that EngineCore need not know where a
request waits. Without `--kv-transfer-config` every call goes to the pipeline.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from atom.errors import RequestError
from atom.model_engine.kv_transfer.transfer import KVTransfer
from atom.model_engine.request import Request
from atom.model_engine.step_pipeline import StepPipeline
from atom.model_engine.transfer_legs import TransferOutcome
from atom.model_engine.wire.core_stats import StatsBody
from atom.model_engine.wire.engine_protocol import FinishedRow, client_of, refused_row

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TransferNews:
    """The news for one client: decode legs that wait no longer, and those that ended instead."""

    client: int
    outcomes: list[TransferOutcome]
    finished: list[FinishedRow]


class RequestDesk:
    def __init__(self, pipeline: StepPipeline, transfer: KVTransfer | None) -> None:
        self._pipeline = pipeline
        self._transfer = transfer

    @property
    def seconds_left(self) -> float | None:
        """Return for how long nothing is due; None if an event comes first."""
        return None if self._transfer is None else self._transfer.seconds_left

    def enter(self, request: Request) -> list[FinishedRow]:
        """Queue a request, or let it wait for its pages; returns its end if it cannot be taken."""
        transfer = self._transfer
        try:
            if transfer is not None and (refused := transfer.refusal(request)) is not None:
                return [refused]
            if transfer is not None and transfer.takes(request):
                transfer.hold(request)
            else:
                self._pipeline.add(request)
        except Exception as error:  # of this one request, and no reason to end the others
            return [self.undo(request, error)]
        return []

    def undo(self, request: Request, error: Exception) -> FinishedRow:
        """Give back everything that a request took before this error; returns its end."""
        self._pipeline.abort([request.id])
        if self._transfer is not None:
            self._transfer.give_back(request)
        if isinstance(error, RequestError):
            return refused_row(request.id, str(error), error.param or "request")
        logger.error("request %d could not be taken", request.id, exc_info=error)
        return refused_row(request.id, f"it could not be queued: {type(error).__name__}")

    def knows(self, request_id: int) -> bool:
        """Return whether this request has not ended."""
        if self._pipeline.knows(request_id):
            return True
        return self._transfer is not None and request_id in self._transfer.open_requests

    def open_requests(self) -> tuple[int, ...]:
        """Return the ids of all requests that have not ended."""
        waiting = () if self._transfer is None else self._transfer.open_requests
        return (*waiting, *self._pipeline.open_requests())

    def abort(self, request_ids: Sequence[int]) -> list[FinishedRow]:
        """Abort requests; unknown ids (already finished) are ignored."""
        waiting = [] if self._transfer is None else self._transfer.drop(request_ids)
        return waiting + self._pipeline.abort(request_ids)

    def exchange_pages(self) -> list[TransferNews]:
        """Serve other engines, and queue the requests that wait for pages no longer."""
        if self._transfer is None:
            return []
        joining = self._transfer.turn(self._pipeline.is_waiting)
        ended = [each.ended for each in joining if each.ended is not None]
        for each in joining:
            if each.ended is None:
                try:
                    self._pipeline.add(each.request)
                except Exception as error:
                    ended.append(self.undo(each.request, error))
        clients = {client_of(each.request.id) for each in joining}
        return [
            TransferNews(
                client,
                [each.outcome for each in joining if client_of(each.request.id) == client],
                [row for row in ended if client_of(row.request_id) == client],
            )
            for client in clients
        ]

    def make_room(self) -> bool:
        """Let the queue's first request have the blocks that were held for others, since nothing
        runs. Returns False if it has to wait for other engines."""
        return self._transfer is None or self._transfer.release_waiting()

    def void(self) -> None:
        """Forget the pages of other engines and for them, since the cache is emptied."""
        if self._transfer is not None:
            self._transfer.void()

    def told_in(self, stats: StatsBody) -> StatsBody:
        """Return a core's statistics with those of the exchange."""
        return stats if self._transfer is None else self._transfer.told_in(stats)

    def close(self) -> None:
        if self._transfer is not None:
            self._transfer.close()
