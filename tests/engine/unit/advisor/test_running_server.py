"""The load of a running server: what two readings of its metrics give, and what they cannot."""

from __future__ import annotations

import http.server
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from atom.advisor.errors import AdviceError
from atom.entrypoints.advise.running_server import MeasuredLoad, load_of_metrics
from atom.entrypoints.cli import main
from benchmarks.workloads.shapes import SHAPES

SLO = "ttft=2s,itl=50ms@p90"
OURS = {"cached": "prefix_cache_cached_tokens_total", "whole": "prompt_tokens_total"}
THEIRS = {"cached": "prefix_cache_hits_total", "whole": "prefix_cache_queries_total"}


def body(requests: int, prefix: str = "atom:", *, ranks: int = 1) -> str:
    """The metrics of a server after so many requests of 1,000 and 50 tokens, a quarter cached."""
    names = OURS if prefix == "atom:" else THEIRS
    values = {
        "request_prompt_tokens_count": requests,
        "request_prompt_tokens_sum": 1000 * requests,
        "request_generation_tokens_sum": 50 * requests,
        names["cached"]: 250 * requests,
        names["whole"]: 1000 * requests,
    }
    lines = ["# HELP text", "other_metric 5"]
    for rank in range(ranks):
        lines += [f'{prefix}{name}{{rank="{rank}"}} {value}' for name, value in values.items()]
    return "\n".join(lines)


def files(folder: Path, before: str, after: str) -> str:
    (folder / "before").write_text(before)
    (folder / "after").write_text(after)
    return f"{folder / 'before'},{folder / 'after'}"


@pytest.mark.parametrize("prefix", ["atom:", "vllm:"])
@pytest.mark.parametrize("ranks", [1, 3])
def test_two_readings_give_rate_lengths_and_the_cached_share(
    tmp_path: Path, prefix: str, ranks: int
) -> None:
    place = files(tmp_path, body(100, prefix, ranks=ranks), body(700, prefix, ranks=ranks))
    found = load_of_metrics(place, 200.0)
    assert found.rate == pytest.approx(3.0 * ranks)
    assert (found.input_tokens, found.output_tokens) == (1000, 50)
    assert found.prefix == pytest.approx(0.25)
    assert "25% of the prompts cached" in found.notes[0]
    assert len(found.notes) == 1
    few = load_of_metrics(files(tmp_path, body(0, prefix), body(9, prefix)), 3.0)
    assert "only 9 requests" in few.notes[1]


@pytest.mark.parametrize(("length", "acceptance"), [(1, 0.6), (3, 0.7), (5, 0.0), (4, 1.0)])
def test_counters_of_drafts_give_the_chance_of_one(
    tmp_path: Path, length: int, acceptance: float
) -> None:
    def drafted(count: int) -> str:
        kept = sum(acceptance**place for place in range(1, length + 1))
        names = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
        values = (count, count * length, round(count * kept))
        lines = [
            f"vllm:spec_decode_{name}_total {value}"
            for name, value in zip(names, values, strict=True)
        ]
        return "\n".join([body(count, "vllm:"), *lines])

    found = load_of_metrics(files(tmp_path, drafted(0), drafted(100_000)), 60.0)
    assert found.acceptance == pytest.approx(acceptance, abs=1e-4)
    plain = load_of_metrics(files(tmp_path, body(0), body(100)), 60.0)
    assert plain.acceptance is None


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (body(5), body(5), "no request ended"),
        (body(50), body(5), "began again"),
        (body(5), "nothing of ours 4", "has no metric"),
        (body(5), "atom:requests_running 4", "lacks request_prompt_tokens_count"),
    ],
)
def test_readings_that_tell_no_load_are_errors_with_a_remedy(
    tmp_path: Path, before: str, after: str, words: str
) -> None:
    with pytest.raises(AdviceError, match=words):
        load_of_metrics(files(tmp_path, before, after), 60.0)


@pytest.mark.parametrize(
    "place", ["one-file", "a,b,c", "/nowhere/a,/nowhere/b", "\0,b", "http://a b", "http://[a"]
)
def test_places_that_cannot_be_read_are_errors(place: str) -> None:
    with pytest.raises(AdviceError, match="--from-metrics"):
        load_of_metrics(place, 60.0)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_the_time_between_readings_is_above_nothing(seconds: float) -> None:
    with pytest.raises(AdviceError, match="--metrics-seconds"):
        load_of_metrics("a,b", seconds)


@contextmanager
def served(bodies: list[str]) -> Iterator[str]:
    """A server of metrics that change with each reading."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path == "/metrics"
            self.send_response(200)
            self.end_headers()
            self.wfile.write(bodies.pop(0).encode())

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_server_is_read_twice_at_its_address() -> None:
    slept: list[float] = []
    with served([body(10), body(130)]) as address:
        found = load_of_metrics(address, 30.0, slept.append)
    assert slept == [30.0]
    assert found.rate == pytest.approx(4.0)
    with served([body(10), body(40)]) as address:
        assert load_of_metrics(f"{address}/metrics", 30.0, slept.append).rate == pytest.approx(1.0)


def test_a_server_that_does_not_answer_is_an_error() -> None:
    with served([]) as address:
        pass
    with pytest.raises(AdviceError, match="cannot be read"):
        load_of_metrics(address, 30.0)


@pytest.mark.parametrize("answer", [b"SSH-2.0-server\r\n", b"HTTP/1.1 200 OK\r\nx\r\n" * 200])
def test_a_port_that_speaks_no_http_is_an_error(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def speak() -> None:
            with listening.accept()[0] as connection:
                connection.recv(4096)
                connection.sendall(answer)

        thread = threading.Thread(target=speak)
        thread.start()
        with pytest.raises(AdviceError, match="cannot be read"):
            load_of_metrics(f"http://127.0.0.1:{listening.getsockname()[1]}", 30.0)
        thread.join()


def test_the_command_answers_for_a_servers_load(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "qwen3-8b.json"
    model.write_text(json.dumps(SHAPES["qwen3-8b"]))
    place = files(tmp_path, body(0), body(120))
    words = ["--model", str(model), "--slo", SLO, "--cards", "MI300X", "--quant", "none"]
    code = main(["advise", *words, "--max-devices", "1", "--from-metrics", place, "-o", "json"])
    found = json.loads(capsys.readouterr().out)
    assert code == 0
    assert any("requests/s of 1000 and 50 tokens" in note for note in found["notes"])
    assert MeasuredLoad(rate=1, input_tokens=1, output_tokens=1, source="", requests=1).longest == 2
