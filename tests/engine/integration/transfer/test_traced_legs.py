"""Both legs of a divided request, and the frontend that divides it, are one trace."""

from __future__ import annotations

import contextlib
from collections import Counter
from pathlib import Path
from secrets import token_hex

import httpx
import msgspec
import pytest
from opentelemetry.context import Context
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from atom.entrypoints.tracing.request_span import RequestSpan
from atom.model_engine.request_trace import EndedRequest, QueuedCall
from atom.model_engine.transfer_legs import PrefillLeg, TransferOutcome, TransferResult
from atom.sampling_params import SamplingParams
from tests.support.engine_core.builders_engine import make_request
from tests.support.models.tiny_model import make_tiny_checkpoint
from tests.support.server.role_servers import divided_servers
from tests.support.server.server_process import PEERS
from tests.support.server.span_receiver import span_receiver
from tests.support.waiting import HANG_SECONDS, wait_until

_AT_ONCE = {"OTEL_BSP_SCHEDULE_DELAY": "50"}
_CALLER = "00f067aa0ba902b7"
_LONG = "This prompt is long enough to be computed by another worker than its answer. " * 4


def test_legs_are_parts_of_their_requests_spans() -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    span = RequestSpan(provider.get_tracer("tests"), "chat", "/path", Context())
    request = make_request(7, [1, 2, 3], arrive_time=2.0)
    request = msgspec.structs.replace(request, kv_transfer=PrefillLeg())
    span.queued(QueuedCall("name", "model", SamplingParams(), [request]))
    span.ended(EndedRequest(7, "length", 0, 1, 0.5, 3.0, 3.0, None))
    span.transferred(TransferOutcome(7, TransferResult.RECOMPUTED, "gone", 0, 0.25))
    headers = span.headers()
    span.end()
    prefill, transfer, whole = exporter.get_finished_spans()
    assert [each.name for each in (prefill, transfer, whole)] == [
        "kv.prefill", "kv.transfer", "chat model",
    ]  # fmt: skip
    for part in (prefill, transfer):
        assert part.parent is not None
        assert part.parent.span_id == whole.context.span_id
    assert prefill.end_time is not None
    assert prefill.start_time is not None
    assert prefill.end_time - prefill.start_time == 10**9
    assert dict(transfer.attributes or {}) == {
        "kv_transfer.result": "recomputed",
        "kv_transfer.reason": "gone",
        "kv_transfer.tokens": 0,
    }
    named = f"{whole.context.trace_id:032x}-{whole.context.span_id:016x}"
    assert headers["traceparent"].startswith(f"00-{named}-")


@pytest.mark.whole
def test_a_frontend_and_both_workers_trace_one_request(tmp_path: Path) -> None:
    model = make_tiny_checkpoint(tmp_path / "model", max_position_embeddings=1024)
    with contextlib.ExitStack() as stack:
        receiver = stack.enter_context(span_receiver())
        flags = ("--otlp-traces-endpoint", f"{receiver.url}/v1/traces")
        peers = {**PEERS, **_AT_ONCE}
        front, _, _ = stack.enter_context(
            divided_servers(model, tmp_path, *flags, environment=peers)
        )

        def ask() -> str:
            """The trace of one request; a prompt that was sent before is not divided."""
            trace = token_hex(16)
            answer = httpx.post(
                f"{front.url}/v1/completions",
                json={"prompt": f"{trace} {_LONG}", "max_tokens": 4},
                headers={"traceparent": f"00-{trace}-{_CALLER}-01"},
                timeout=HANG_SECONDS,
            )
            assert answer.status_code == 200, answer.text
            return trace

        traces: list[str] = []

        def complete() -> list[Span]:
            """The spans of a trace that has a part of every server: the first requests may come
            before the frontend has found both workers."""
            traces.append(ask())
            came = [each.span for each in list(receiver.spans)]
            of_traces = ([s for s in came if s.trace_id.hex() == trace] for trace in traces)
            return next((spans for spans in of_traces if len(spans) == 5), [])

        wait_until(lambda: bool(complete()), "five spans are in one trace")
        spans = complete()
        named = {span.span_id.hex(): span.name.split()[0] for span in spans}
        parents = Counter(
            (span.name.split()[0], named.get(span.parent_span_id.hex(), "")) for span in spans
        )
        assert parents == {
            ("text_completion", ""): 1,
            ("text_completion", "text_completion"): 2,
            ("kv.prefill", "text_completion"): 1,
            ("kv.transfer", "text_completion"): 1,
        }
        assert any(span.parent_span_id.hex() == _CALLER for span in spans)
