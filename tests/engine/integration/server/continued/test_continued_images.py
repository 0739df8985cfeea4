"""Answers about pictures go on when the engine or the server that computes them ends, and every
HTTP process takes pictures alike."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.support.pictures import file_of
from tests.support.server.paced_engines import paced
from tests.support.server.seeing_model import image_part
from tests.support.server.server_process import PEERS, ServerProcess, server_process
from tests.support.server.streamed_answers import Ask, StreamedAnswers
from tests.support.waiting import wait_until

MODEL = Path(__file__).resolve().parents[5] / "examples" / "models" / "atom-tiny-eyes"
CHAT = "/v1/chat/completions"
FLAGS = ("--max-num-seqs", "16", "--num-kv-blocks", "300", "--dtype", "float32")
TOKENS = 60
_SIDE = 112


def picture(*colours: str) -> bytes:
    """Draw squares of these colours on white."""
    drawn = Image.new("RGB", (_SIDE, _SIDE), "white")
    for at, colour in enumerate(colours):
        left, top = 10 + 50 * (at % 2), 10 + 50 * (at // 2)
        drawn.paste(colour, (left, top, left + 36, top + 36))
    return file_of(drawn)


def asked(*files: bytes, **fields: Any) -> Ask:
    parts = [*map(image_part, files), {"type": "text", "text": "How many squares?"}]
    body = {"messages": [{"role": "user", "content": parts}], "max_tokens": TOKENS}
    return CHAT, {**body, "ignore_eos": True, "seed": 3, "temperature": 0, **fields}


ASKED = [
    asked(picture("red")),
    asked(picture("blue", "green"), picture("red"), temperature=0.8),
    asked(picture("green", "red", "blue"), n=2, temperature=0.8),
]


@contextlib.contextmanager
def two_replicas(tmp_path: Path) -> Iterator[tuple[ServerProcess, ServerProcess]]:
    """Start two servers, of which the first hands over to the second."""
    with server_process(MODEL, tmp_path / "second", *FLAGS, environment=PEERS) as second:
        flags = (*FLAGS, "--handover-url", second.url)
        with server_process(MODEL, tmp_path / "first", *flags, environment=PEERS) as first:
            yield first.wait_ready(), second.wait_ready()


def _is_calm(server: ServerProcess) -> bool:
    return server.metric("mm_waiting_bytes") == server.metric("mm_engine_bytes") == 0


@pytest.mark.parametrize(
    "end", [pytest.param("asked to end", marks=pytest.mark.whole), "its engine is killed"]
)
def test_an_answer_about_a_picture_goes_on_at_another_replica(tmp_path: Path, end: str) -> None:
    with two_replicas(tmp_path) as (first, second):
        calm = StreamedAnswers(second.url, ASKED).end()
        assert not any(trouble for *_, trouble in calm), calm
        with paced(first) as engines:
            streams = engines.begin_asked(first, ASKED)
            assert first.metric("mm_waiting_bytes") > 0, "they may be sent to another"
            if end == "asked to end":
                first.signal(signal.SIGTERM)
            else:
                engines.engines[0].kill()
        assert streams.end() == calm
        assert first.wait_exit() == (0 if end == "asked to end" else 1)
        wait_until(lambda: _is_calm(second), "the memory is back")
        assert second.metric("mm_items_total") >= 5 + 5, "the pictures came with the answers"


def test_every_http_process_takes_pictures_alike(tmp_path: Path) -> None:
    flags = (*FLAGS, "--api-server-count", "2", "--limit-mm-per-prompt", "2")
    with server_process(MODEL, tmp_path / "log", *flags) as server:
        server.wait_ready()
        path, body = asked(picture("red", "blue"), max_tokens=4)
        _, many = asked(*[picture("red")] * 3, max_tokens=4)
        answers, refusals = [], []
        # Every request is a new connection, so the kernel spreads them over the processes.
        for _ in range(8):
            answers.append(server.post(path, **body).json())
            refusals.append(server.post(path, **many).json()["error"])
        names = [name for name in ("api-1", "api-2") if f"{name} uvicorn.access" in server.log]
        assert names == ["api-1", "api-2"], "both took part"
        assert len({each["choices"][0]["message"]["content"] for each in answers}) == 1
        assert {each["code"] for each in refusals} == {"too_many_images"}
        encoded = server.metric("mm_encoder_seconds_count")
        assert encoded == 1, "both processes give an image the same key"
        cached = [each["usage"]["prompt_tokens_details"]["cached_tokens"] for each in answers]
        assert all(each > 0 for each in cached[1:])
        wait_until(lambda: _is_calm(server), "the memory is back")
