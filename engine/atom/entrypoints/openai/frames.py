"""The events of one streamed answer, made when they are sent.

`AnswerFrames` follows the choices of one HTTP request; an `EventShape` (chat's, or plain text's)
says what an event looks like. Most events differ in nothing but their text, so those are cut from a
template. No HTTP; read by sse.py.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from atom.entrypoints.http.json_body import to_json
from atom.entrypoints.http.sse import DONE
from atom.entrypoints.openai.choices import Answers, Piece, takes_long
from atom.model_engine.front.request_stream import RequestStream
from atom.model_engine.request import RequestOutput


class EventShape(Protocol):
    """Every method gives whole events."""

    def opening(self) -> bytes:
        """What comes before any output."""

    def shows_as_is(self, index: int) -> bool:
        """Whether all text that a choice adds from now on is shown as it is."""

    def text(self, index: int, text: str) -> bytes:
        """Text that is added to a choice which goes on, and nothing else."""

    def piece(self, index: int, piece: Piece) -> bytes:
        """Whatever a piece adds to a choice, its end too; may be nothing."""

    def usage(self, lasts: Sequence[RequestOutput]) -> bytes:
        """Behind the last choice's end, if it was asked for. lasts: by choice."""


class TextTemplate:
    """Bytes around a JSON string: what `make` gives for any text, at a fraction of the cost."""

    __slots__ = ("_around",)

    def __init__(self, make: Callable[[str], bytes]) -> None:
        """make: bytes that hold their text as a JSON string, once or several times."""
        mark = uuid.uuid4().hex
        self._around = make(mark).split(to_json(mark))

    def fill(self, text: str) -> bytes:
        return to_json(text).join(self._around)


class AnswerFrames:
    """What has come of an answer's choices, as events; ends with [DONE].

    The log-probabilities of a long prompt are written on a thread, since others wait on this one;
    what came behind them waits for them.
    """

    def __init__(self, answers: Answers, shape: EventShape) -> None:
        self._answers = answers
        self._shape = shape
        self._templates: dict[int, TextTemplate] = {}
        self._lasts: dict[int, RequestOutput] = {}
        self._opened = False
        self._listener: Callable[[], None] | None = None
        self._taken: deque[tuple[int, RequestOutput]] = deque()  # and no events made of it yet
        self._writing: asyncio.Future[bytes] | None = None
        self._lone: tuple[RequestStream, TextTemplate] | None = None  # of a single choice
        self.ended = False

    def listen(self, listener: Callable[[], None] | None) -> None:
        self._listener = listener
        self._answers.group.listen(listener)

    def take(self) -> bytes:
        """Raises the error that an answer ended with, after what came before it."""
        if self._lone is not None:  # nearly every call, with a token of one more answer
            stream, template = self._lone
            text = stream.take_text()
            if text is not None:
                return template.fill(text) if text else b""
        group = self._answers.group
        events = []
        if not self._opened:
            self._opened = True
            events.append(self._shape.opening())
        if self._writing is None:
            self._taken.extend(group.take())
        elif self._writing.done():
            events.append(self._writing.result())
            self._writing = None
            # What came meanwhile, an error perhaps, is for a call of its own.
            asyncio.get_running_loop().call_soon(self._tell)
        while self._taken and self._writing is None:
            index, output = self._taken.popleft()
            if takes_long(len(output.prompt_logprobs or ())):
                self._writing = self._write_beside(index, output)
            else:
                events.append(self._events_of(index, output))
        if group.drained and not (self._taken or self._writing or self.ended):
            self.ended = True
            events += (self._shape.usage([last for _, last in sorted(self._lasts.items())]), DONE)
        return b"".join(events)

    def close(self) -> None:
        self._answers.close()

    def _write_beside(self, index: int, output: RequestOutput) -> asyncio.Future[bytes]:
        loop = asyncio.get_running_loop()
        writing = loop.run_in_executor(None, self._events_of, index, output)
        writing.add_done_callback(lambda _: self._tell())
        return writing

    def _tell(self) -> None:
        if self._listener is not None:
            self._listener()

    def _events_of(self, index: int, output: RequestOutput) -> bytes:
        if output.finished:
            self._lasts[index] = output
        else:
            template = self._templates.get(index) or self._template(index)
            if template is not None:
                return template.fill(output.text) if output.text else b""
        return self._shape.piece(index, self._answers.readers[index].read(output))

    def _template(self, index: int) -> TextTemplate | None:
        """For a choice of which nothing but text is shown until it ends."""
        if not (self._answers.readers[index].shows_text_alone and self._shape.shows_as_is(index)):
            return None
        template = TextTemplate(lambda text: self._shape.text(index, text))
        self._templates[index] = template
        streams = self._answers.group.streams
        if len(streams) == 1:
            self._lone = streams[0], template
        return template
