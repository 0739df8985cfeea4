"""A collector of OpenTelemetry's spans in the test's own process: OTLP over HTTP, in protobuf."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.support.waiting import wait_until


@dataclass(frozen=True)
class ReceivedSpan:
    span: Span
    resource: dict[str, Any]

    @property
    def attributes(self) -> dict[str, Any]:
        return _values(self.span.attributes)

    @property
    def events(self) -> list[str]:
        return [event.name for event in self.span.events]

    @property
    def event_times(self) -> list[int]:
        return [event.time_unix_nano for event in self.span.events]


@dataclass
class SpanReceiver:
    """Everything that came. bodies: as they were sent."""

    url: str
    spans: list[ReceivedSpan] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)

    def take(self, path: str, body: bytes) -> None:
        assert path == "/v1/traces"
        self.bodies.append(body)
        for resource_spans in ExportTraceServiceRequest.FromString(body).resource_spans:
            resource = _values(resource_spans.resource.attributes)
            for scope_spans in resource_spans.scope_spans:
                self.spans += [ReceivedSpan(span, resource) for span in scope_spans.spans]

    def where(self, wanted: Callable[[ReceivedSpan], bool]) -> list[ReceivedSpan]:
        return [span for span in list(self.spans) if wanted(span)]

    def of_trace(self, trace_id: str) -> ReceivedSpan:
        """The one span of a trace, once it has come."""

        def found() -> list[ReceivedSpan]:
            return self.where(lambda each: each.span.trace_id.hex() == trace_id)

        wait_until(lambda: bool(found()), f"a span of trace {trace_id}")
        (span,) = found()
        return span


@contextlib.contextmanager
def span_receiver() -> Iterator[SpanReceiver]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            receiver.take(self.path, self.rfile.read(int(self.headers["content-length"])))
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: Any) -> None:
            """Its lines are nobody's."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        receiver = SpanReceiver(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield receiver
        finally:
            server.shutdown()
            thread.join()


def _values(pairs: Iterable[KeyValue]) -> dict[str, Any]:
    return {each.key: _value(each.value) for each in pairs}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, str(kind))
