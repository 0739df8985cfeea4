"""Reading engine outputs for an answer: what both endpoints do alike."""

from __future__ import annotations

from dataclasses import dataclass

from atom.errors import RequestError
from atom.model_engine.request import FinishReason, RequestOutput
from atom.model_engine.request_stream import RequestStream


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """What every body of one answer begins with. created: seconds since 1970."""

    id: str
    created: int
    model: str


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer. last: its last output, which has the counts."""

    text: str
    finish_reason: str
    last: RequestOutput


def check_output(output: RequestOutput) -> None:
    """Raises `RequestError` when the engine ended the request without an answer."""
    if output.finish_reason is FinishReason.ERROR:
        raise RequestError(f"the engine could not answer: {output.finish_detail}", status=500)
    if output.finish_reason is FinishReason.ABORT:
        raise RequestError(f"the engine ended the request: {output.finish_detail}", status=503)


async def read_answer(stream: RequestStream) -> Answer:
    """The stream to its end. Raises what the stream raises."""
    texts: list[str] = []
    async for output in stream:
        check_output(output)
        texts.append(output.text)
        if output.finished:
            return Answer("".join(texts), str(output.finish_reason), output)
    raise RequestError("the request was aborted", status=499)
