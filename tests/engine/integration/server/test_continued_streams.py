"""Streams of every kind go on when what computes them ends; their clients see no difference."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.models.tiny_model import make_tiny_checkpoint
from tests.support.server.server_process import server_process
from tests.support.server.streamed_answers import StreamedAnswers, asks
from tests.support.waiting import wait_until

TOKENS = 400
FLAGS = ("--max-num-seqs", "32", "--num-kv-blocks", "1200")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny") / "qwen3"
    return make_tiny_checkpoint(folder, "qwen3", max_position_embeddings=2048)


def test_answers_of_a_lost_rank_go_on_at_the_other(checkpoint: Path, tmp_path: Path) -> None:
    asked = asks(TOKENS, per_kind=2)
    flags = ("--data-parallel-size", "2", *FLAGS)
    with server_process(checkpoint, tmp_path / "log", *flags) as server:
        server.wait_ready()
        calm = StreamedAnswers(server.url, asked).end()
        assert not any(trouble for *_, trouble in calm), calm
        streams = StreamedAnswers(server.url, asked)
        streams.wait_begun()
        victim, other = server.engine_processes()
        other.suspend()
        victim.kill()
        wait_until(lambda: server.metric("requests_continued_total") > 0, "answers go on")
        other.resume()
        assert streams.end() == calm
        assert server.wait_exit() == 1
