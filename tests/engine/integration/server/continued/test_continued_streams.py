"""Streams of every kind go on when what computes them ends; their clients see no difference."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.support.models.tiny_model import make_tiny_checkpoint
from tests.support.server.paced_engines import paced
from tests.support.server.server_process import PEERS, ServerProcess, server_process
from tests.support.server.streamed_answers import Ask, StreamedAnswers, asks
from tests.support.waiting import wait_until

TOKENS = 120
# Of a server with two ranks, each has streams of every kind.
OF_RANKS = asks(TOKENS, per_kind=2)
ASKED = asks(TOKENS)
# Else the last bits of log-probabilities follow from what else is in a batch.
FLAGS = ("--max-num-seqs", "32", "--num-kv-blocks", "1200", "--reproducible")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny") / "qwen3"
    return make_tiny_checkpoint(folder, "qwen3", max_position_embeddings=2048)


@contextlib.contextmanager
def two_replicas(checkpoint: Path, tmp_path: Path) -> Iterator[tuple[ServerProcess, ServerProcess]]:
    """The first hands over to the second."""
    with server_process(checkpoint, tmp_path / "second", *FLAGS, environment=PEERS) as second:
        flags = (*FLAGS, "--handover-url", second.url)
        with server_process(checkpoint, tmp_path / "first", *flags, environment=PEERS) as first:
            yield first.wait_ready(), second.wait_ready()


def calm_answers(server: ServerProcess, asked: Sequence[Ask]) -> list[tuple[object, ...]]:
    calm = StreamedAnswers(server.url, asked).end()
    assert not any(trouble for *_, trouble in calm), calm
    return calm


def test_answers_of_a_lost_rank_go_on_at_the_other(checkpoint: Path, tmp_path: Path) -> None:
    flags = ("--data-parallel-size", "2", *FLAGS)
    with server_process(checkpoint, tmp_path / "log", *flags, environment=PEERS) as server:
        server.wait_ready()
        calm = calm_answers(server, OF_RANKS)
        with paced(server) as engines:
            streams = engines.begin_asked(server, OF_RANKS)
            engines.engines[0].kill()
            wait_until(lambda: server.metric("requests_continued_total") > 0, "answers go on")
        assert streams.end() == calm
        assert server.wait_exit() == 1


def test_answers_of_a_replica_that_has_to_go_go_on_at_another(
    checkpoint: Path, tmp_path: Path
) -> None:
    with two_replicas(checkpoint, tmp_path) as (first, second):
        calm = calm_answers(second, ASKED)
        with paced(second), paced(first) as engines:
            streams = engines.begin_asked(first, ASKED)
            first.signal(signal.SIGTERM)
            engines.resume()
            (engine,) = engines.engines
            wait_until(lambda: not engine.is_running(), "the device is free")
            assert first.metric("requests_continued_total") > 0
        assert streams.end() == calm
        assert first.wait_exit() == 0
        assert second.metric("requests_running") == second.metric("kv_cache_blocks_used") == 0


def test_answers_of_a_killed_engine_process_go_on_at_another_replica(
    checkpoint: Path, tmp_path: Path
) -> None:
    with two_replicas(checkpoint, tmp_path) as (first, second):
        calm = calm_answers(second, ASKED)
        with paced(first) as engines:
            streams = engines.begin_asked(first, ASKED)
            engines.engines[0].kill()
        assert streams.end() == calm
        assert first.wait_exit() == 1


def test_what_no_replica_takes_is_finished_where_it_is(checkpoint: Path, tmp_path: Path) -> None:
    with two_replicas(checkpoint, tmp_path) as (first, second):
        calm = calm_answers(second, ASKED)
        with paced(first) as engines:
            streams = engines.begin_asked(first, ASKED)
            second.process.kill()
            second.wait_exit()
            first.signal(signal.SIGTERM)
        assert streams.end() == calm
        assert first.wait_exit() == 0
