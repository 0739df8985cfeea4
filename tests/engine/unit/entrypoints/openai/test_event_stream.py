"""Frames on their way to one reader: at once when it reads, together when it lags, then the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atom.entrypoints.http.json_body import to_json
from atom.entrypoints.http.sse import EventStream, FrameWriter, error_frame
from atom.entrypoints.openai.choices import AnswerHead, Answers, Piece, Shown, ShownTokens
from atom.entrypoints.openai.frames import AnswerFrames, TextTemplate
from atom.entrypoints.openai.logprobs import TokenNames
from atom.entrypoints.openai.responses import TextChoice, TextCompletion
from atom.errors import RequestError
from atom.model_engine.front.request_stream import RequestGroup
from atom.model_engine.request import FinishReason, Request, RequestOutput
from atom.sampling_params import SamplingParams
from atom.utils.eager import run_eagerly
from tests.support.waiting import HANG_SECONDS

MOST_TURNS = 1000


class Source:
    """Frames that a test gives by hand."""

    def __init__(self) -> None:
        self.waiting: list[bytes] = []
        self.ended = False
        self.error: Exception | None = None
        self.closed = 0
        self.listener: Callable[[], None] | None = None

    def listen(self, listener: Callable[[], None] | None) -> None:
        self.listener = listener

    def take(self) -> bytes:
        data, self.waiting = b"".join(self.waiting), []
        if not data and self.error is not None:
            raise self.error
        return data

    def failure(self, error: Exception) -> bytes:
        return error_frame(error)

    def close(self) -> None:
        self.closed += 1

    def give(self, *frames: bytes, end: bool = False) -> None:
        self.waiting += frames
        self.ended = end
        self.notify()

    def notify(self) -> None:
        if self.listener is not None:
            self.listener()


class Reader:
    """The server's side of a connection: takes bodies at once unless told to lag."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.room = asyncio.Event()
        self.room.set()

    async def send(self, message: Any) -> None:
        if not self.room.is_set():
            await self.room.wait()
        self.messages.append(message)

    @property
    def bodies(self) -> list[bytes]:
        return [each["body"] for each in self.messages if each["type"] == "http.response.body"]


async def settled(done: Callable[[], bool]) -> None:
    for _ in range(MOST_TURNS):
        if done():
            return
        await asyncio.sleep(0)  # the next turn of the loop
    raise AssertionError("it did not come")


async def test_a_frame_is_sent_in_the_turn_that_brought_it() -> None:
    source, reader = Source(), Reader()
    running = asyncio.create_task(FrameWriter(source, reader.send).run())
    await asyncio.sleep(0)
    source.give(b"a")
    assert reader.bodies == [b"a"]  # no turn of the loop in between
    source.give(b"b", end=True)
    assert reader.messages[-1] == {
        "type": "http.response.body",
        "body": b"b",
        "more_body": False,
    }
    await asyncio.wait_for(running, HANG_SECONDS)


async def test_what_came_before_the_response_began_is_sent_first() -> None:
    source, reader = Source(), Reader()
    source.give(b"early")
    running = asyncio.create_task(FrameWriter(source, reader.send).run())
    await settled(lambda: bool(reader.bodies))
    source.give(b"late", end=True)
    await asyncio.wait_for(running, HANG_SECONDS)
    assert reader.bodies == [b"early", b"late"]


async def test_a_lagging_reader_gets_what_came_meanwhile_in_one_piece() -> None:
    source, reader = Source(), Reader()
    running = asyncio.create_task(FrameWriter(source, reader.send).run())
    await asyncio.sleep(0)
    reader.room.clear()
    for entry in (b"a", b"b", b"c"):
        source.give(entry)
    assert reader.bodies == []
    reader.room.set()
    await settled(lambda: len(reader.bodies) == 2)
    assert reader.bodies == [b"a", b"bc"]
    source.give(b"d")
    assert reader.bodies == [b"a", b"bc", b"d"]  # at once again
    source.give(end=True)
    await asyncio.wait_for(running, HANG_SECONDS)


async def test_the_end_reaches_a_reader_that_lagged() -> None:
    source, reader = Source(), Reader()
    running = asyncio.create_task(FrameWriter(source, reader.send).run())
    await asyncio.sleep(0)
    reader.room.clear()
    source.give(b"a")
    source.give(b"b", end=True)
    reader.room.set()
    await asyncio.wait_for(running, HANG_SECONDS)
    assert reader.bodies == [b"a", b"b"]
    assert reader.messages[-1]["more_body"] is False


@pytest.mark.parametrize("lags", [False, True])
async def test_a_failure_comes_behind_what_came_before_it_as_the_last_event(lags: bool) -> None:
    source, reader = Source(), Reader()
    running = asyncio.create_task(FrameWriter(source, reader.send).run())
    await asyncio.sleep(0)
    if lags:
        reader.room.clear()
    source.give(b"a")
    source.error = RequestError("too slow", status=408, code="slow_reader")
    source.notify()
    reader.room.set()
    await asyncio.wait_for(running, HANG_SECONDS)
    assert reader.bodies[0] == b"a"
    assert b'"slow_reader"' in reader.bodies[-1]
    assert reader.messages[-1]["more_body"] is False


async def test_a_failure_of_sending_is_raised() -> None:
    async def broken(message: Any) -> None:
        raise OSError("gone")

    source = Source()
    running = asyncio.create_task(FrameWriter(source, broken).run())
    await asyncio.sleep(0)
    source.give(b"a")
    with pytest.raises(OSError, match="gone"):
        await asyncio.wait_for(running, HANG_SECONDS)


@pytest.mark.parametrize("lags", [False, True])
async def test_a_client_that_leaves_closes_the_frames_and_gets_nothing_more(lags: bool) -> None:
    source, reader, left = Source(), Reader(), asyncio.Event()

    async def receive() -> Any:
        await left.wait()
        return {"type": "http.disconnect"}

    serving = asyncio.create_task(EventStream(source)({}, receive, reader.send))
    await settled(lambda: source.listener is not None)
    source.give(b"a")
    if lags:
        reader.room.clear()
        source.give(b"b")
    left.set()
    await asyncio.wait_for(serving, HANG_SECONDS)
    assert source.closed == 1
    reader.room.set()
    source.give(b"c", end=True)
    await asyncio.sleep(0)
    assert reader.bodies == [b"a"]


# ---- an answer's frames -------------------------------------------------------------------------


class TextShape:
    """Events of nothing but text between an opening and a closing."""

    def opening(self) -> bytes:
        return b"["

    def shows_as_is(self, index: int) -> bool:
        return True

    def text(self, index: int, text: str) -> bytes:
        return to_json(text)

    def piece(self, index: int, piece: Piece) -> bytes:
        return to_json(piece.text)

    def closing(self) -> bytes:
        return b"]"

    def failure(self, error: Exception) -> bytes:
        return b"!"


def output(text: str, *, end: bool = False) -> RequestOutput:
    reason = FinishReason.LENGTH if end else None
    return RequestOutput("name", [1], text, end, reason, None, 1, 1, 0)


@given(
    texts=st.lists(st.sampled_from(["", "a"]), max_size=4),
    unread=st.lists(st.sampled_from(["", "b"]), max_size=4),
    reads_again=st.booleans(),
    fails=st.booleans(),
    token_ids=st.booleans(),
)
async def test_a_stream_ends_whatever_its_outputs_show(
    texts: list[str], unread: list[str], reads_again: bool, fails: bool, token_ids: bool
) -> None:
    """Outputs without text (half a character, a stop string that may be forming) are no reason to
    leave behind what waits after them."""
    request = Request(1, [1], SamplingParams(), 100, 0.0)
    group, reader = RequestGroup([request], lambda group: None), Reader()
    answers = Answers(group, Shown(tokens=ShownTokens(ids=token_ids)), None, TokenNames(None))
    running = asyncio.create_task(
        FrameWriter(AnswerFrames(answers, TextShape()), reader.send).run()
    )
    await asyncio.sleep(0)

    def put(text: str, *, end: bool = False) -> None:
        assert group.put(0, output(text, end=end), 0.0)
        group.notify()

    for text in texts:
        put(text)
    reader.room.clear()
    for text in unread:
        put(text)
    if reads_again:
        reader.room.set()
        await asyncio.sleep(0)
    if fails:
        group.fail(RequestError("too slow", status=408, code="slow_reader"))
    else:
        put("", end=True)
    reader.room.set()
    await asyncio.wait_for(running, HANG_SECONDS)
    told = "[" + "".join(texts + unread) + ("!" if fails else "]")
    assert b"".join(reader.bodies).replace(b'"', b"") == told.encode()
    assert reader.messages[-1]["more_body"] is False


# ---- a coroutine as far as it comes -------------------------------------------------------------


async def test_what_need_not_wait_is_done_at_once() -> None:
    done = []

    async def work() -> None:
        done.append(1)

    assert run_eagerly(work()) is None
    assert done == [1]


async def test_the_rest_can_be_awaited_and_fails_as_the_whole_would() -> None:
    gates = [asyncio.Event(), asyncio.Event()]
    seen = []

    async def work() -> None:
        for gate in gates:
            await gate.wait()
            seen.append(gate)
        raise ValueError("at last")

    rest = run_eagerly(work())
    assert rest is not None

    async def finish() -> None:
        await rest

    finishing = asyncio.create_task(finish())
    for gate in gates:
        await asyncio.sleep(0)
        gate.set()
    with pytest.raises(ValueError, match="at last"):
        await asyncio.wait_for(finishing, HANG_SECONDS)
    assert seen == gates


async def test_the_rest_is_told_of_its_cancellation() -> None:
    told = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            told.append(1)

    rest = run_eagerly(work())
    assert rest is not None
    finishing = asyncio.ensure_future(rest)
    await asyncio.sleep(0)
    finishing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await finishing
    assert told == [1]


# ---- templates ----------------------------------------------------------------------------------


@given(st.text(), st.text())
def test_a_template_gives_what_encoding_gives(text: str, model: str) -> None:
    head = AnswerHead("cmpl-1", 1, model)

    def event(text: str) -> bytes:
        choices = [TextChoice(0, text)]
        return to_json(
            TextCompletion(id=head.id, created=head.created, model=head.model, choices=choices)
        )

    assert TextTemplate(event).fill(text) == event(text)
