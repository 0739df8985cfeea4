"""RequestSpan: one HTTP request's span, by OpenTelemetry's conventions for generative AI.

The HTTP side reports how the request was answered, and the engine how it ended: the times are those
that the engine measures for /metrics. A span holds no part of prompts or answers: numbers, names
and ids alone, and no error messages, which may quote a request.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping

from opentelemetry.context import Context
from opentelemetry.trace import SpanKind, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from atom.errors import RequestError
from atom.model_engine.request_trace import EndedRequest, QueuedCall, RequestTrace
from atom.model_engine.transfer_legs import PrefillLeg, TransferOutcome
from atom.sampling_params import SamplingParams

_CLIENT_LEFT = 499
_FAILED = ("error", "abort")


class RequestSpan(RequestTrace):
    """Trace one request from its construction on. request_id: of the answer's headers. http_status:
    of the answer; 0 if none was sent. fault: an exception that became no answer."""

    def __init__(self, tracer: Tracer, operation: str, path: str, caller: Context) -> None:
        self.request_id = ""
        self.http_status = 0
        self.fault: BaseException | None = None
        # Times of the engine are monotonic, those of spans are of the calendar.
        self._epoch_ns = time.time_ns() - time.monotonic_ns()
        self._operation, self._tracer = operation, tracer
        self._prefill_legs: set[int] = set()  # numbers of requests
        self._arrivals: dict[int, float] = {}  # by number of the request
        self._prompt_tokens = 0
        self._ends: list[EndedRequest] = []
        self._last_end = 0.0
        self._span = tracer.start_span(
            operation,
            context=caller,
            kind=SpanKind.SERVER,
            attributes={
                "gen_ai.operation.name": operation,
                "gen_ai.provider.name": "atom",
                "http.request.method": "POST",
                "url.path": path,
            },
        )

    # ---- the engine's reports -----------------------------------------------------------------

    def queued(self, call: QueuedCall) -> None:
        self._arrivals |= {request.id: request.arrive_time for request in call.requests}
        legs = (each.id for each in call.requests if isinstance(each.kv_transfer, PrefillLeg))
        self._prefill_legs.update(legs)
        prompts = call.requests[:: call.params.n]  # a prompt counts once, as in the API's usage
        self._prompt_tokens += sum(len(request.prompt_token_ids) for request in prompts)
        self._span.update_name(f"{self._operation} {call.model}")
        self._span.set_attributes(
            {
                "gen_ai.request.model": call.model,
                "gen_ai.response.model": call.model,
                "gen_ai.response.id": call.name,
            }
        )
        if self._operation in ("chat", "text_completion"):
            self._span.set_attributes(_asked(call.params))

    def ended(self, request: EndedRequest) -> None:
        self._ends.append(request)
        # A prompt that is only pooled has no token.
        end = request.last_token_time or time.monotonic()
        self._last_end = max(self._last_end, end)
        if request.number in self._prefill_legs:
            self._part("kv.prefill", self._arrivals[request.number], end, {})

    def transferred(self, outcome: TransferOutcome) -> None:
        told: dict[str, AttributeValue] = {
            "kv_transfer.result": outcome.result.value,
            "kv_transfer.tokens": outcome.tokens,
        }
        if outcome.reason:
            told["kv_transfer.reason"] = outcome.reason
        end = time.monotonic()
        self._part("kv.transfer", end - outcome.seconds, end, told)

    def headers(self) -> Mapping[str, str]:
        carrier: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(carrier, set_span_in_context(self._span))
        return carrier

    def _part(
        self, name: str, first: float, end: float, told: Mapping[str, AttributeValue]
    ) -> None:
        """Record a part of the request as a span within it. first, end: in the engine's clock."""
        start, stop = (self._epoch_ns + int(seconds * 1e9) for seconds in (first, end))
        own = set_span_in_context(self._span)
        self._tracer.start_span(name, own, attributes=told, start_time=start).end(stop)

    # ---- the end ------------------------------------------------------------------------------

    def end(self) -> None:
        """End the span, and record nothing after it."""
        self._span.set_attribute("http.response.header.x-request-id", [self.request_id])
        if self.http_status:
            self._span.set_attribute("http.response.status_code", self.http_status)
        if self._arrivals:
            self._tell_answers()
        error = self._error_type()
        if error:
            self._span.set_attribute("error.type", error)
            self._span.set_status(Status(StatusCode.ERROR, _DESCRIPTIONS.get(error)))
        self._span.end()

    def _tell_answers(self) -> None:
        ends = self._ends
        self._span.set_attributes(
            {
                "gen_ai.usage.input_tokens": self._prompt_tokens,
                "gen_ai.usage.output_tokens": sum(end.num_output_tokens for end in ends),
                "gen_ai.response.finish_reasons": [end.finish_reason for end in ends],
            }
        )
        arrivals = self._arrivals
        first_steps = (
            arrivals[end.number] + end.queue_seconds
            for end in ends
            if end.queue_seconds is not None
        )
        self._event("queued", arrivals.values())
        self._event("scheduled", first_steps)
        self._event("first_token", (end.first_token_time for end in ends))
        self._event("finished", [self._last_end])

    def _event(self, name: str, times: Iterable[float | None]) -> None:
        """Add the earliest of several requests' events, if there is one."""
        first = min((seconds for seconds in times if seconds), default=None)
        if first is not None:
            self._span.add_event(name, timestamp=self._epoch_ns + int(first * 1e9))

    def _error_type(self) -> str:
        """Return why the answer is incomplete; "" if it is complete."""
        if isinstance(self.fault, asyncio.CancelledError) or self.http_status == _CLIENT_LEFT:
            return "client_left"
        if self.fault is not None:
            return type(self.fault).__name__
        if self.http_status >= 400:
            return str(self.http_status)
        failed = [end for end in self._ends if end.finish_reason in _FAILED]
        if failed:
            return _type_of(failed[0])
        return "" if self.http_status else "client_left"


_DESCRIPTIONS = {"client_left": "the client left before the answer was complete"}


def _type_of(end: EndedRequest) -> str:
    error = end.error
    if error is None:
        return "engine_error" if end.finish_reason == "error" else "client_left"
    if isinstance(error, RequestError):
        return error.code or str(error.status)
    return type(error).__name__


def _asked(params: SamplingParams) -> dict[str, AttributeValue]:
    """Return a request's sampling parameters as span attributes, with the server's defaults
    applied."""
    told: dict[str, AttributeValue] = {
        "gen_ai.request.temperature": params.temperature,
        "gen_ai.request.top_p": params.top_p,
    }
    if params.max_tokens is not None:
        told["gen_ai.request.max_tokens"] = params.max_tokens
    if params.n != 1:
        told["gen_ai.request.choice.count"] = params.n
    return told
