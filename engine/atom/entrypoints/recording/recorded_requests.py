"""RecordedRequests: a layer of the HTTP application that lets a recorder see every request.

The engine reports to the recorder through `CURRENT_TRACE`, as it does to a span, which then is told
of everything too. Present only if a recording is made.
"""

from __future__ import annotations

from collections.abc import Mapping

from starlette.types import ASGIApp, Receive, Scope, Send

from atom.entrypoints.handover.token_frames import PATH as CONTINUE_PATH
from atom.entrypoints.recording.load_recorder import Arrival, LoadRecorder
from atom.model_engine.request_trace import (
    CURRENT_TRACE,
    EndedRequest,
    QueuedCall,
    RequestTrace,
)
from atom.model_engine.transfer_legs import TransferOutcome

# Answers that another server has recorded already.
_NOT_RECORDED = frozenset({CONTINUE_PATH})
_LEFT_EARLY = frozenset({"abort", "error"})


class RecordedRequests:
    def __init__(self, app: ASGIApp, recorder: LoadRecorder) -> None:
        self._app = app
        self._recorder = recorder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in _NOT_RECORDED:
            await self._app(scope, receive, send)
            return
        before = CURRENT_TRACE.set(_RecordedCalls(self._recorder, CURRENT_TRACE.get()))
        try:
            await self._app(scope, receive, send)
        finally:
            CURRENT_TRACE.reset(before)


class _RecordedCalls(RequestTrace):
    """Record the requests of one HTTP request. outer: the trace that is told everything too."""

    def __init__(self, recorder: LoadRecorder, outer: RequestTrace | None) -> None:
        self._recorder = recorder
        self._outer = outer
        self._open: dict[int, Arrival] = {}  # by number of the request

    def queued(self, call: QueuedCall) -> None:
        if self._outer is not None:
            self._outer.queued(call)
        for request in call.requests:
            arrival = self._recorder.arrived(request)
            if arrival is not None:
                self._open[request.id] = arrival

    def ended(self, request: EndedRequest) -> None:
        if self._outer is not None:
            self._outer.ended(request)
        arrival = self._open.pop(request.number, None)
        # A prompt that is only pooled has no token. A client that left before its first token
        # would have had one at least.
        if arrival is not None and (
            request.num_output_tokens or request.finish_reason in _LEFT_EARLY
        ):
            self._recorder.answered(arrival, max(1, request.num_output_tokens))

    def transferred(self, outcome: TransferOutcome) -> None:
        if self._outer is not None:
            self._outer.transferred(outcome)

    def headers(self) -> Mapping[str, str]:
        return {} if self._outer is None else self._outer.headers()
