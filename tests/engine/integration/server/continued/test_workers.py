"""A server without an engine, in front of two that compute: its clients see no worker's death."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.support.models.tiny_model import make_tiny_checkpoint
from tests.support.server.paced_engines import paced
from tests.support.server.printed_steps import pasted
from tests.support.server.server_process import PEERS, ServerProcess, reserved_port, server_process
from tests.support.server.streamed_answers import StreamedAnswers, asks
from tests.support.waiting import HANG_SECONDS, wait_until

TOKENS = 400
ASKED = asks(TOKENS, per_kind=2)
# Else the last bits of log-probabilities follow from what else is in a batch.
FLAGS = ("--max-num-seqs", "32", "--num-kv-blocks", "1200", "--reproducible")
ENDLESS = {"prompt": "x", "max_tokens": 1900, "ignore_eos": True, "stream": True}


@dataclass
class Front:
    """A server with workers, and these."""

    server: ServerProcess
    workers: list[ServerProcess]

    def running(self) -> list[float]:
        return [worker.metric("requests_running") for worker in self.workers]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny") / "qwen3"
    return make_tiny_checkpoint(folder, "qwen3", max_position_embeddings=2048)


@contextlib.contextmanager
def front_of(
    checkpoint: Path, tmp_path: Path, *worker_flags: str, count: int = 2
) -> Iterator[Front]:
    with contextlib.ExitStack() as stack:
        workers = [
            stack.enter_context(
                server_process(
                    checkpoint,
                    tmp_path / f"worker{number}",
                    *FLAGS,
                    *worker_flags,
                    environment=PEERS,
                )
            )
            for number in range(count)
        ]
        urls = [worker.url for worker in workers]
        server = stack.enter_context(
            server_process(
                checkpoint, tmp_path / "front", *FLAGS, "--worker-urls", *urls, environment=PEERS
            )
        )
        for each in (*workers, server):
            each.wait_ready()
        wait_until(lambda: server.health()[0] == 200, "the workers are found")
        yield Front(server, workers)


def test_streams_outlive_a_worker_that_is_killed_without_notice(
    checkpoint: Path, tmp_path: Path
) -> None:
    with front_of(checkpoint, tmp_path) as front:
        calm = StreamedAnswers(front.workers[1].url, ASKED).end()
        assert not any(trouble for *_, trouble in calm), calm
        with paced(*front.workers) as engines:
            streams = engines.begin_asked(front.server, ASKED, events=1)
            assert front.running()[0] > 0, "the victim has open answers"
            front.workers[0].kill_without_notice()
        assert streams.end() == calm
        assert front.server.metric("requests_continued_total") > 0
        assert StreamedAnswers(front.server.url, ASKED[:2]).end() == calm[:2]
        assert not front.server.engine_processes()
        wait_until(lambda: "ask from a shell" in front.server.log, "the start is told")
        assert pasted(front.server.log), "the next step of its start works"
        last = front.workers[1]
        assert last.metric("requests_running") == last.metric("kv_cache_blocks_used") == 0


def test_a_client_that_leaves_ends_its_answer_at_the_worker(
    checkpoint: Path, tmp_path: Path
) -> None:
    with front_of(checkpoint, tmp_path, count=1) as front:
        (worker,) = front.workers
        url = f"{front.server.url}/v1/completions"
        engine = worker.engine_process()
        with httpx.stream("POST", url, json=ENDLESS, timeout=HANG_SECONDS) as response:
            next(response.iter_lines())
            engine.suspend()  # the answer does not end by itself meanwhile
        engine.resume()
        wait_until(lambda: not sum(front.running()), "nothing runs")
        ended = [line for line in worker.get("/metrics").text.splitlines() if "abort" in line]
        assert [line for line in ended if line.endswith((" 1", " 1.0"))], ended


def test_without_a_worker_clients_hear_so_and_are_served_again_once_there_is_one(
    checkpoint: Path, tmp_path: Path
) -> None:
    with contextlib.ExitStack() as stack:
        port = stack.enter_context(reserved_port())
        url = f"http://127.0.0.1:{port}"
        flags = (*FLAGS, "--worker-urls", url)
        front = stack.enter_context(
            server_process(checkpoint, tmp_path / "front", *flags, environment=PEERS)
        )
        wait_until(lambda: "waiting for a worker" in str(front.health()), "it looks for one")
        assert front.health()[0] == 503
        assert front.get("/live").status_code == 200
        assert url in front.health()[1]["reason"]
        first_flags = (*FLAGS, "--server-port", str(port))
        first = stack.enter_context(
            server_process(checkpoint, tmp_path / "first", *first_flags, environment=PEERS)
        )
        front.wait_ready()
        streams = StreamedAnswers(front.url, [("/v1/completions", ENDLESS)] * 3)
        streams.wait_begun()
        first.kill_without_notice()
        for *_, trouble in streams.end():
            assert "could not go on at any replica" in str(trouble)
        wait_until(lambda: front.health()[0] == 503, "it says so")
        assert front.health()[1]["status"] == "unreachable"
        refused = front.post("/v1/completions", prompt="x")
        assert refused.status_code == 503
        assert refused.headers["retry-after"]
        assert front.get("/live").status_code == 200
        again = server_process(checkpoint, tmp_path / "again", *first_flags, environment=PEERS)
        stack.enter_context(again)
        front.wait_ready()
        assert front.post("/v1/completions", prompt="x").status_code == 200


def test_what_workers_refuse_is_told_with_their_status(checkpoint: Path, tmp_path: Path) -> None:
    flags = ("--max-waiting-requests", "1", "--max-model-len", "64")
    with front_of(checkpoint, tmp_path, *flags) as front:
        longer = front.server.post("/v1/completions", prompt="x", max_tokens=200)
        assert longer.status_code == 400
        assert "max_total_tokens" in longer.text
        engines = [worker.engine_process() for worker in front.workers]
        for engine in engines:
            engine.suspend()  # so that nothing is answered that others would wait behind
        many = front.server.post("/v1/completions", prompt=["x"] * 8, n=4, stream=True)
        for engine in engines:
            engine.resume()
        assert many.status_code == 429
        assert many.headers["retry-after"]
        assert front.server.post("/v1/completions", prompt="x", max_tokens=2).status_code == 200
