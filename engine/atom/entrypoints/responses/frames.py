"""A streamed response: its lifecycle and its items' events, as server-sent events.

    created, in_progress, items with their deltas …, completed | incomplete | failed

Each event has its type (also on a separate line) and its sequence number. Deltas differ in their
text alone, so they are cut from a template. An EventShape, read by `AnswerFrames`.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from atom.answer_parsing import Content
from atom.entrypoints.http.errors import describe
from atom.entrypoints.http.json_body import to_json
from atom.entrypoints.openai.choices import Answers, Piece
from atom.entrypoints.openai.frames import TextTemplate
from atom.entrypoints.responses import events as told
from atom.entrypoints.responses.chat_request import own_error
from atom.entrypoints.responses.objects import ResponseError, ResponseObject
from atom.entrypoints.responses.serving import AnswerReader, response_end
from atom.errors import RequestError

_DELTAS = (
    told.OutputTextDelta,
    told.ReasoningTextDelta,
    told.CallArgumentsDelta,
    told.CustomInputDelta,
)
_ERROR_CODES = {429: "rate_limit_exceeded"}


class ResponseFrames:
    """EventShape of /v1/responses."""

    def __init__(
        self,
        answers: Answers,
        reader: AnswerReader,
        begun: ResponseObject,
        keep: Callable[[ResponseObject], None],
    ) -> None:
        """begun: the response before any output. keep: called with it when it is complete."""
        self._answers = answers
        self._reader = reader
        self._output = reader.output
        self._begun = begun
        self._keep = keep
        self._number = 0
        self._templates: dict[tuple[type[told.Event], str], TextTemplate] = {}

    def opening(self) -> bytes:
        return self._written(
            [told.ResponseCreated(self._begun), told.ResponseInProgress(self._begun)]
        )

    def shows_as_is(self, index: int) -> bool:
        """Return False: no event equals another, since each has its number."""
        return False

    def text(self, index: int, text: str) -> bytes:
        return self._written(self._output.add(Content(text)))

    def piece(self, index: int, piece: Piece) -> bytes:
        return self._written(self._reader.take(piece))

    def closing(self) -> bytes:
        if not self._answers.lasts:  # it was aborted, and has no reader
            return b""
        status, details = response_end(self._answers)
        events = self._output.end(status)
        response = self._begun.completed(status, self._output.items, self._answers.usage(), details)
        end = told.ResponseIncomplete if details is not None else told.ResponseCompleted
        self._keep(response)
        return self._written([*events, end(response)])

    def failure(self, error: Exception) -> bytes:
        """Encode the failure with the output so far, so that a client sees how far the response
        was."""
        status, body = describe(own_error(error) if isinstance(error, RequestError) else error)
        code = _ERROR_CODES.get(status, "server_error" if status >= 500 else "invalid_prompt")
        failed = msgspec.structs.replace(
            self._begun,
            status="failed",
            error=ResponseError(code, body.error.message),
            output=self._output.so_far(),
        )
        return self._written([told.ResponseFailed(failed)])

    def _written(self, events: list[told.Event]) -> bytes:
        return b"".join(map(self._event, events))

    def _event(self, event: told.Event) -> bytes:
        number, self._number = self._number, self._number + 1
        if isinstance(event, _DELTAS) and not getattr(event, "logprobs", None):
            return self._delta(event) + b',"sequence_number":%d}\n\n' % number
        return _framed(event) + b',"sequence_number":%d}\n\n' % number

    def _delta(
        self,
        event: told.OutputTextDelta
        | told.ReasoningTextDelta
        | told.CallArgumentsDelta
        | told.CustomInputDelta,
    ) -> bytes:
        key = (type(event), event.item_id)
        template = self._templates.get(key)
        if template is None:
            template = self._templates[key] = TextTemplate(
                lambda text: _framed(msgspec.structs.replace(event, delta=text))
            )
        return template.fill(event.delta)


def _framed(event: told.Event) -> bytes:
    """Write all of an event but its number and its end."""
    name: str = event.__struct_config__.tag  # type: ignore[assignment]
    return b"event: %b\ndata: %b" % (name.encode(), to_json(event)[:-1])
