"""RequestTrace: the engine's reports of a call's requests to the HTTP side, which traces the call.

The HTTP side sets `CURRENT_TRACE` around a request that it traces; the engine reads it when it
queues the call, and reports every request's end to it. Without tracing the variable is unset, and
nothing else is paid. Torch-free; knows no library of spans.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

from atom.model_engine.request import Request
from atom.model_engine.transfer_legs import TransferOutcome
from atom.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class QueuedCall:
    """Describe a call as it is queued. name: its outputs carry it. params: as they were asked for.
    requests: one for each answer, `params.n` to each prompt."""

    name: str
    model: str
    params: SamplingParams
    requests: Sequence[Request]


@dataclass(frozen=True, slots=True)
class EndedRequest:
    """Describe one request of a call at its end; times in the clock of `Request.arrive_time`.
    finish_reason: a FinishReason's value. queue_seconds: from its arrival to its first step; None
    if it had none, or ended early. first_token_time, last_token_time: None without a token. error:
    that ended it early; None also if its reader has left."""

    number: int
    finish_reason: str
    num_cached_tokens: int
    num_output_tokens: int
    queue_seconds: float | None
    first_token_time: float | None
    last_token_time: float | None
    error: Exception | None


class RequestTrace(Protocol):
    def queued(self, call: QueuedCall) -> None:
        """Record a queued call; a trace may have several."""

    def ended(self, request: EndedRequest) -> None:
        """Record the end of one of the call's requests, successful or not."""

    def transferred(self, outcome: TransferOutcome) -> None:
        """Record that the request waits for pages of another engine no longer."""

    def headers(self) -> Mapping[str, str]:
        """Return the HTTP headers by which another server's trace belongs to this one."""


# The tracer of the running task: each task sees its own request's.
CURRENT_TRACE: ContextVar[RequestTrace | None] = ContextVar("current_trace", default=None)


def traced(call: QueuedCall) -> RequestTrace | None:
    """Report a queued call to the running task's tracer, and return it; None if there is none."""
    trace = CURRENT_TRACE.get()
    if trace is not None:
        trace.queued(call)
    return trace


def trace_headers() -> Mapping[str, str]:
    """Return the headers of the running task's trace for another server; none without one."""
    trace = CURRENT_TRACE.get()
    return {} if trace is None else trace.headers()
