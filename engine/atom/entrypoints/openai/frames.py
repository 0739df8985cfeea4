"""The events of one streamed answer, made when they are sent.

`AnswerFrames` follows the choices of one HTTP request; an `EventShape` (chat's, or plain text's)
defines the form of an event. Most events differ in nothing but their text, so those are cut from a
template. No HTTP; read by sse.py.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from typing import Protocol

from atom.entrypoints.http.json_body import to_json
from atom.entrypoints.http.sse import error_frame
from atom.entrypoints.openai.choices import AnswerHead, Answers, Piece, takes_long
from atom.model_engine.request import RequestOutput


class EventShape(Protocol):
    """Every method gives whole events."""

    def opening(self) -> bytes:
        """Write the events that come before any output."""

    def shows_as_is(self, index: int) -> bool:
        """Return whether all further text of a choice is shown unchanged."""

    def text(self, index: int, text: str) -> bytes:
        """Encode text that is added to a choice which continues, and nothing else."""

    def piece(self, index: int, piece: Piece) -> bytes:
        """Write all that a piece adds to a choice, its end too; may be nothing."""

    def closing(self) -> bytes:
        """Write the events behind the last choice's end: usage if it was asked for, and the mark
        of the end if the API has one."""

    def failure(self, error: Exception) -> bytes:
        """Write the last event of a stream that this error ends."""


class StreamEvents:
    """Base of an EventShape that needs no event before any output, and reports errors as OpenAI's
    API does."""

    def __init__(self, answers: Answers, head: AnswerHead, *, with_usage: bool) -> None:
        self._answers = answers
        self._head = head
        self._with_usage = with_usage

    def opening(self) -> bytes:
        return b""

    def failure(self, error: Exception) -> bytes:
        return error_frame(error)


class TextTemplate:
    """Produce the bytes of `make` for any text, at a fraction of the cost, by a template."""

    __slots__ = ("_around",)

    def __init__(self, make: Callable[[str], bytes]) -> None:
        """make: bytes that hold their text as a JSON string, once or several times."""
        mark = uuid.uuid4().hex
        self._around = make(mark).split(to_json(mark))

    def fill(self, text: str) -> bytes:
        return to_json(text).join(self._around)


class AnswerFrames:
    """Write the new pieces of an answer's choices as events.

    Events with a long prompt's log-probabilities are written on a thread, since other requests wait
    on this one; later events wait for them.
    """

    def __init__(self, answers: Answers, shape: EventShape) -> None:
        self._answers = answers
        self._group = answers.group
        self._shape = shape
        self._templates: list[TextTemplate | None] = [None] * len(answers.readers)
        self._tells_of_prompts = any(self._group.prompt_token_ids)
        self._opened = False
        self._listener: Callable[[], None] | None = None
        self._writing: asyncio.Future[bytes] | None = None
        self.ended = False

    def listen(self, listener: Callable[[], None] | None) -> None:
        self._listener = listener
        self._group.listen(listener)

    def take(self) -> bytes:
        """Return the next events; empty only if no output waits: outputs without text are skipped,
        so that a later one, an error perhaps, is not left waiting. Raises the error that an answer
        ended with, after the output before it."""
        if not self._opened:
            self._opened = True
            opening = self._shape.opening()
            if opening:  # alone, since an error must not take it along
                return opening
        events = b""
        while not events and not self.ended and (found := self._take_events()) is not None:
            events = found
            if self._group.drained:
                self.ended = True
                events += self._shape.closing()
        return events

    def _take_events(self) -> bytes | None:
        """Take the events of the new outputs, which may be empty; None if no output waits, or its
        events are being written on a thread."""
        if self._writing is not None:
            if not self._writing.done():
                return None
            events, self._writing = self._writing.result(), None
            # Later outputs, an error perhaps, are for the next call.
            asyncio.get_running_loop().call_soon(self._tell)
            return events
        found = self._group.take()
        if self._tells_of_prompts and any(map(_takes_long, found)):
            self._writing = self._write_beside(found)
            return None
        if not found and not self._group.drained:
            return None
        return b"".join(map(self._event, found))

    def failure(self, error: Exception) -> bytes:
        return self._shape.failure(error)

    def close(self) -> None:
        self._answers.close()

    def _write_beside(self, found: list[tuple[int, RequestOutput]]) -> asyncio.Future[bytes]:
        loop = asyncio.get_running_loop()
        writing = loop.run_in_executor(None, lambda: b"".join(map(self._event, found)))
        writing.add_done_callback(lambda _: self._tell())
        return writing

    def _tell(self) -> None:
        if self._listener is not None:
            self._listener()

    def _event(self, found: tuple[int, RequestOutput]) -> bytes:
        index, output = found
        if not output.finished:
            template = self._templates[index] or self._template(index)
            if template is not None:
                return template.fill(output.text) if output.text else b""
        return self._shape.piece(index, self._answers.readers[index].read(output))

    def _template(self, index: int) -> TextTemplate | None:
        """Make a template for a choice of which nothing but text is shown until it ends."""
        if self._answers.readers[index].shows_text_alone and self._shape.shows_as_is(index):
            self._templates[index] = TextTemplate(lambda text: self._shape.text(index, text))
        return self._templates[index]


def _takes_long(found: tuple[int, RequestOutput]) -> bool:
    return takes_long(len(found[1].prompt_logprobs or ()))
