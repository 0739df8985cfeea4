"""TracedRequests: a span around every request that generates, from its head to its last byte.

A layer of the HTTP application, present only if spans are on. The caller's context arrives in the
headers of W3C Trace Context; the engine reports to the span through `CURRENT_TRACE`.
"""

from __future__ import annotations

from opentelemetry.context import Context
from opentelemetry.trace import Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from atom.entrypoints.tracing.request_span import RequestSpan
from atom.model_engine.request_trace import CURRENT_TRACE

# gen_ai.operation.name by path: OpenTelemetry's names, or the endpoint's if it has none.
OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "text_completion",
    "/v1/messages": "chat",
    "/v1/responses": "chat",
    "/inference/v1/generate": "text_completion",
    "/v1/embeddings": "embeddings",
    "/v1/score": "score",
    "/score": "score",
    "/v1/rerank": "rerank",
    "/rerank": "rerank",
    "/v2/rerank": "rerank",
    "/continue_request": "text_completion",  # of another server, whose span is the parent
}
_CONTEXT_HEADERS = ("traceparent", "tracestate")


class TracedRequests:
    def __init__(self, app: ASGIApp, tracer: Tracer) -> None:
        self._app = app
        self._tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        operation = None
        if scope["type"] == "http" and scope["method"] == "POST":
            operation = OPERATIONS.get(scope["path"])
        if operation is None:
            await self._app(scope, receive, send)
            return
        span = RequestSpan(self._tracer, operation, scope["path"], _caller_of(scope))
        span.request_id = scope.get("state", {}).get("request_id", "")

        async def send_noting_status(message: Message) -> None:
            if message["type"] == "http.response.start":
                span.http_status = message["status"]
            await send(message)

        before = CURRENT_TRACE.set(span)
        try:
            await self._app(scope, receive, send_noting_status)
        except BaseException as error:
            span.fault = error
            raise
        finally:
            CURRENT_TRACE.reset(before)
            span.end()


def _caller_of(scope: Scope) -> Context:
    """Read the caller's span from the headers; a malformed one is ignored."""
    carrier: dict[str, str] = {}
    for name, value in scope["headers"]:
        key = name.decode("latin-1")
        if key in _CONTEXT_HEADERS:
            text = value.decode("latin-1")
            carrier[key] = f"{carrier[key]},{text}" if key in carrier else text
    return TraceContextTextMapPropagator().extract(carrier, Context())
