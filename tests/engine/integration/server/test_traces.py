"""Spans of a real server's requests, as a collector in this process gets them."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex

import httpx
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from atom.entrypoints.anthropic.serving_messages import MESSAGES
from atom.entrypoints.handover.token_frames import PATH as CONTINUED
from atom.entrypoints.openai.generation import DIALECTS
from atom.entrypoints.responses.protocol import PATH as RESPONSES
from atom.entrypoints.token_in_token_out.generate import GENERATE
from atom.entrypoints.tracing.trace_flags import traces_endpoint
from atom.entrypoints.tracing.traced_requests import OPERATIONS
from atom.errors import ConfigError
from tests.support.models.pooling_checkpoint import make_embedder
from tests.support.models.tiny_model import make_tiny_checkpoint
from tests.support.server.pooling_examples import EXAMPLES
from tests.support.server.server_process import (
    SERVED_NAME,
    ServerProcess,
    command_environment,
    reserved_port,
    run_atom,
    server_process,
)
from tests.support.server.span_receiver import ReceivedSpan, SpanReceiver, span_receiver
from tests.support.waiting import HANG_SECONDS, wait_until

AT_ONCE = {"OTEL_BSP_SCHEDULE_DELAY": "50", "OTEL_SERVICE_NAME": "tiny-service"}
SECRET = "platypus-in-the-prompt"
STEPS = ["queued", "scheduled", "first_token", "finished"]
FLAG = "--otlp-traces-endpoint"


@dataclass(frozen=True)
class Traced:
    server: ServerProcess
    receiver: SpanReceiver

    def ask(self, path: str, *, flags: str = "01", **fields: object) -> tuple[str, httpx.Response]:
        """The trace that a request belongs to, and its answer."""
        trace_id = token_hex(16)
        answer = httpx.post(
            f"{self.server.url}{path}",
            json=fields,
            headers=caller_headers(trace_id, flags),
            timeout=HANG_SECONDS,
        )
        return trace_id, answer

    def span(self, path: str, **fields: object) -> tuple[ReceivedSpan, httpx.Response]:
        trace_id, answer = self.ask(path, **fields)
        return self.receiver.of_trace(trace_id), answer


CALLER = "00f067aa0ba902b7"


def caller_headers(trace_id: str, flags: str = "01") -> dict[str, str]:
    return {
        "traceparent": f"00-{trace_id}-{CALLER}-{flags}",
        "tracestate": "vendor=value",
        "x-request-id": f"asked-{trace_id}",
    }


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny") / "llama"
    return make_tiny_checkpoint(folder, "llama", max_position_embeddings=8192)


@pytest.fixture(scope="module")
def traced(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traced]:
    """A server of two HTTP processes."""
    flags = ("--api-server-count", "2", "--num-kv-blocks", "1200", "--max-num-seqs", "4")
    log = tmp_path_factory.mktemp("log") / "log"
    with span_receiver() as receiver:
        where = (FLAG, f"{receiver.url}/v1/traces")
        with server_process(checkpoint, log, *flags, *where, environment=AT_ONCE) as server:
            yield Traced(server.wait_ready(), receiver)


CHAT = {
    "messages": [{"role": "user", "content": SECRET}],
    "max_tokens": 5,
    "temperature": 0.5,
    "ignore_eos": True,
}


def test_a_chat_is_a_span_of_its_callers_trace(traced: Traced) -> None:
    found, answer = traced.span("/v1/chat/completions", **CHAT)
    span, body = found.span, answer.json()
    assert span.parent_span_id.hex() == CALLER
    assert span.trace_state == "vendor=value"
    assert (span.name, span.kind) == (f"chat {SERVED_NAME}", Span.SPAN_KIND_SERVER)
    assert span.status.code == Status.STATUS_CODE_UNSET
    assert found.attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "atom",
        "gen_ai.request.model": SERVED_NAME,
        "gen_ai.request.max_tokens": 5,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.response.model": SERVED_NAME,
        "gen_ai.response.id": body["id"],
        "gen_ai.response.finish_reasons": ["length"],
        "gen_ai.usage.input_tokens": body["usage"]["prompt_tokens"],
        "gen_ai.usage.output_tokens": 5,
        "http.request.method": "POST",
        "http.response.status_code": 200,
        "http.response.header.x-request-id": [answer.headers["x-request-id"]],
        "url.path": "/v1/chat/completions",
    }
    assert found.resource["service.name"] == "tiny-service"
    assert found.resource["process.pid"] in [each.pid for each in traced.server.api_processes()]


def test_its_events_are_in_order_within_it(traced: Traced) -> None:
    found, _ = traced.span("/v1/chat/completions", **CHAT)
    assert found.events == STEPS
    times = [found.span.start_time_unix_nano, *found.event_times, found.span.end_time_unix_nano]
    assert times == sorted(times)
    assert found.event_times[2] < found.event_times[3], "five tokens take some steps"


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/completions", {"prompt": SECRET, "max_tokens": 3, "stream": True}),
        ("/v1/messages", {**CHAT, "max_tokens": 3}),
        ("/v1/responses", {"input": SECRET, "max_output_tokens": 3}),
    ],
)
def test_other_endpoints_that_generate_have_spans(
    traced: Traced, path: str, fields: dict[str, object]
) -> None:
    found, answer = traced.span(path, model=SERVED_NAME, **fields)
    assert answer.status_code == 200, answer.text
    assert found.span.name == f"{OPERATIONS[path]} {SERVED_NAME}"
    assert found.events == STEPS
    assert 1 <= found.attributes["gen_ai.usage.output_tokens"] <= 3
    assert found.span.parent_span_id.hex() == CALLER


def test_several_answers_are_one_span(traced: Traced) -> None:
    asked = {"prompt": ["one", "and two"], "n": 2, "max_tokens": 4, "ignore_eos": True}
    found, answer = traced.span("/v1/completions", **asked)
    usage = answer.json()["usage"]
    assert usage["completion_tokens"] == 16
    assert found.attributes["gen_ai.usage.output_tokens"] == 16
    assert found.attributes["gen_ai.usage.input_tokens"] == usage["prompt_tokens"]
    assert found.attributes["gen_ai.request.choice.count"] == 2
    assert found.attributes["gen_ai.response.finish_reasons"] == ["length"] * 4
    assert found.events == STEPS


def test_a_refused_request_is_an_error(traced: Traced) -> None:
    found, answer = traced.span("/v1/chat/completions", **{**CHAT, "temperature": -3})
    assert answer.status_code == 400
    assert found.span.status.code == Status.STATUS_CODE_ERROR
    assert found.attributes["error.type"] == "400"
    assert found.events == []


def test_a_stream_that_runs_out_of_time_is_an_error(traced: Traced) -> None:
    asked = {"prompt": SECRET, "max_tokens": 8000, "ignore_eos": True, "stream": True}
    found, answer = traced.span("/v1/completions", **asked, timeout=0.2)
    assert answer.status_code == 200
    assert found.span.status.code == Status.STATUS_CODE_ERROR
    assert found.attributes["error.type"] == "timeout"
    assert found.attributes["gen_ai.response.finish_reasons"] == ["abort"]


def test_a_client_that_leaves_is_an_error(traced: Traced) -> None:
    trace_id = token_hex(16)
    asked = {"prompt": SECRET, "max_tokens": 8000, "ignore_eos": True, "stream": True}
    url, headers = f"{traced.server.url}/v1/completions", caller_headers(trace_id)
    with httpx.stream("POST", url, json=asked, headers=headers, timeout=HANG_SECONDS) as answer:
        next(answer.iter_lines())
    found = traced.receiver.of_trace(trace_id)
    assert found.span.status.code == Status.STATUS_CODE_ERROR
    assert found.span.status.message == "the client left before the answer was complete"
    assert found.attributes["error.type"] == "client_left"
    assert found.attributes["gen_ai.response.finish_reasons"] == ["abort"]
    assert 1 <= found.attributes["gen_ai.usage.output_tokens"] < 8000


def test_a_client_that_does_not_wait_for_a_whole_answer_is_an_error(traced: Traced) -> None:
    trace_id = token_hex(16)
    asked = {"prompt": SECRET, "max_tokens": 8000, "ignore_eos": True}
    url, headers = f"{traced.server.url}/v1/completions", caller_headers(trace_id)
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(url, json=asked, headers=headers, timeout=0.5)
    found = traced.receiver.of_trace(trace_id)
    assert found.span.status.code == Status.STATUS_CODE_ERROR
    assert found.attributes["error.type"] == "client_left"


def test_what_the_caller_does_not_sample_is_not_sent(traced: Traced) -> None:
    unsampled, answer = traced.ask("/v1/chat/completions", flags="00", **CHAT)
    assert answer.status_code == 200
    traced.span("/v1/chat/completions", **CHAT)
    assert not traced.receiver.where(lambda each: each.span.trace_id.hex() == unsampled)


def test_every_http_process_sends_its_own(traced: Traced) -> None:
    def pids() -> set[int]:
        traced.ask("/v1/chat/completions", **CHAT)
        return {span.resource["process.pid"] for span in list(traced.receiver.spans)}

    expected = {each.pid for each in traced.server.api_processes()}
    assert len(expected) == 2
    wait_until(lambda: pids() == expected, "spans of both processes")


def test_nothing_of_a_prompt_is_sent(traced: Traced) -> None:
    for path, field in (("/v1/chat/completions", "temperature"), ("/v1/completions", "stop")):
        # The second error quotes the request.
        traced.span(path, **{**CHAT, "prompt": SECRET, field: {SECRET: SECRET}})
    traced.span("/v1/chat/completions", **{**CHAT, "stop": [SECRET]})
    assert traced.receiver.bodies
    assert not [body for body in traced.receiver.bodies if SECRET.encode() in body]


def test_what_is_not_sent_yet_is_sent_at_the_end(tmp_path: Path) -> None:
    late = {"OTEL_BSP_SCHEDULE_DELAY": "3600000"}
    embedder = make_embedder(tmp_path / "embedder")
    with span_receiver() as receiver:
        flags = ("--num-kv-blocks", "64", FLAG, receiver.url)
        with server_process(embedder, tmp_path / "log", *flags, environment=late) as server:
            traced = Traced(server.wait_ready(), receiver)
            trace_id, answer = traced.ask("/v1/embeddings", input=["x", "y z"])
            usage = answer.json()["usage"]
            assert not receiver.spans
            server.signal(signal.SIGTERM)
            assert server.wait_exit() == 0
        found = receiver.of_trace(trace_id)
    assert found.span.name == f"embeddings {SERVED_NAME}"
    assert found.attributes["gen_ai.usage.input_tokens"] == usage["prompt_tokens"]
    assert found.resource["service.name"] == "atom"
    assert found.events == ["queued", "scheduled", "finished"]
    assert "gen_ai.request.temperature" not in found.attributes


def test_a_collector_that_is_not_there_hinders_nothing(checkpoint: Path, tmp_path: Path) -> None:
    with reserved_port() as nobody:
        flags = ("--num-kv-blocks", "600", FLAG, f"http://127.0.0.1:{nobody}")
        with server_process(checkpoint, tmp_path / "log", *flags, environment=AT_ONCE) as server:
            server.wait_ready()
            assert server.post("/v1/chat/completions", **CHAT).status_code == 200
            server.signal(signal.SIGTERM)
            assert server.wait_exit() == 0


def test_every_path_that_generates_is_traced() -> None:
    dialects = (*DIALECTS, MESSAGES, GENERATE)
    of_clients = {each.path for each in dialects} | {RESPONSES} | set(EXAMPLES)
    assert set(OPERATIONS) == of_clients | {CONTINUED}


def test_the_sdk_is_not_loaded_without_the_flag() -> None:
    asks = "import atom.entrypoints.server.http_process, sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", asks], env=command_environment(), capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    loaded = done.stdout.split()
    assert "atom.entrypoints.tracing.span_export" in loaded
    assert not [name for name in loaded if name.startswith("opentelemetry.sdk")]


def test_a_missing_library_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk", None)
    with pytest.raises(ConfigError, match=r"opentelemetry-sdk, not .*atom-platform\[otel\]"):
        traces_endpoint("http://collector:4318/v1/traces", {})
    assert traces_endpoint(None, {}) is None


def test_another_protocol_of_the_environment_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"OTEL_EXPORTER_OTLP_PROTOCOL is grpc.*4318"):
        traces_endpoint("http://x/v1/traces", {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"})


def test_an_endpoint_that_is_no_url_is_refused(checkpoint: Path) -> None:
    done = run_atom("serve", str(checkpoint), FLAG, "collector:4317")
    assert done.returncode == 2
    assert "'collector:4317' is no URL such as http://collector:4318/v1/traces" in done.stderr
