"""Tool calls and reasoning in a chat's answers, and how they are shown.

From a request and its prompt to the `AnswerParsing` of its answers; from the parser's events to the
API's messages and deltas. The parsers themselves are atom.answer_parsing's.
"""

from __future__ import annotations

import secrets
import string
import uuid
from collections.abc import Sequence

from msgspec import UNSET

from atom.answer_parsing import (
    AnswerFormats,
    AnswerParser,
    AnswerParsing,
    CallArguments,
    CallStart,
    Content,
    Event,
    Reasoning,
)
from atom.answer_parsing.reasoning_parser import (
    THINK,
    ReasoningStart,
    continued_start,
    reasoning_start,
)
from atom.answer_parsing.tool_parsers import HARMONY, PLAIN_JSON
from atom.answer_parsing.tool_parsers.harmony import channel_start
from atom.entrypoints.openai.chat_prompt import continues_message
from atom.entrypoints.openai.choices import Piece
from atom.entrypoints.openai.protocol import ChatCompletionRequest
from atom.entrypoints.openai.responses import (
    AnswerToolCall,
    CalledFunction,
    ChatAnswer,
    Delta,
    FunctionDelta,
    ToolCallDelta,
)
from atom.entrypoints.openai.tools import Tool
from atom.model_engine.request import FinishReason

CALLS_REASON = "tool_calls"
_PART_CHARACTERS = 2048
_ID_SIGNS = string.ascii_letters + string.digits


def answer_parsing(
    formats: AnswerFormats, request: ChatCompletionRequest, tools: Sequence[Tool], prompt: str
) -> AnswerParsing | None:
    """Choose how answers to a chat request are parsed. tools: that may be called; prompt: as the
    model reads it. None: answers are all content.

    Answers in a structure of the client's own hold no calls; JSON on one line is generated from the
    first token, because a grammar after reasoning cannot enforce that.
    """
    if request.asks_for_one_line:
        return None
    calls = formats.calls if tools and not request.asks_for_structure else None
    if request.forces_call and calls is None:
        calls = PLAIN_JSON
    start, marks = ReasoningStart.OVER, THINK if formats.reasoning is None else None
    if formats.reasoning is not None:
        marks = formats.reasoning.marks
        start = channel_start(prompt)
        if marks is None:
            calls = calls and HARMONY
        else:
            start = reasoning_start(prompt, always=formats.reasoning.always, marks=marks)
            if continues_message(request):
                start = continued_start(_said_before(request), marks)
    parsing = AnswerParsing(
        reasoning=start,
        marks=marks,
        shows_reasoning=request.include_reasoning is not False,
        calls=calls,
        tools={tool.name: tool.parameters for tool in tools},
        several=request.parallel_tool_calls is not False and not request.names_tool,
        special_ids=formats.special_ids,
    )
    return parsing if parsing.needed else None


def _said_before(request: ChatCompletionRequest) -> str:
    """Return the text of the message that the answer continues."""
    content = request.messages[-1].content
    if isinstance(content, str):
        return content
    return "".join(part.text or "" for part in content or ())


def events_of(parsing: AnswerParsing | None, text: str, reason: str) -> list[Event]:
    """Parse a whole answer into events, in order. reason: why the answer ended."""
    if parsing is None:
        return [Content(text)] if text else []
    parser = parsing.parser()
    events: list[Event] = []
    for start in range(0, len(text), _PART_CHARACTERS):  # little text is held back then
        events += parser.feed(text[start : start + _PART_CHARACTERS])
    return events + parser.finish(ended=reason == FinishReason.STOP)


def events_in(parser: AnswerParser | None, piece: Piece) -> list[Event]:
    """Parse the next piece of an answer into events; the last piece also releases held-back
    text."""
    if parser is None:
        return [Content(piece.text)] if piece.text else []
    events = parser.feed(piece.text)
    if piece.output.finished:
        events += parser.finish(ended=piece.output.finish_reason == FinishReason.STOP)
    return events


def message_of(parsing: AnswerParsing, text: str, reason: str) -> ChatAnswer:
    """Build the message of a whole answer; reason: why it ended."""
    events = events_of(parsing, text, reason)
    content = "".join(event.text for event in events if isinstance(event, Content))
    reasoning = "".join(event.text for event in events if isinstance(event, Reasoning))
    calls = _calls_of(events, parsing)
    nothing_said = not content and bool(calls or reasoning)
    return ChatAnswer(
        None if nothing_said else content,
        reasoning=reasoning or UNSET,
        reasoning_content=reasoning or UNSET,
        tool_calls=calls or UNSET,
    )


def _calls_of(events: Sequence[Event], parsing: AnswerParsing) -> list[AnswerToolCall]:
    begun: list[CallStart] = []
    arguments: list[list[str]] = []  # of each call
    for event in events:
        if isinstance(event, CallStart):
            begun.append(event)
            arguments.append([])
        elif isinstance(event, CallArguments):
            arguments[event.index].append(event.text)
    return [
        AnswerToolCall(call_id(start, parsing), CalledFunction(start.name, "".join(pieces)))
        for start, pieces in zip(begun, arguments, strict=True)
    ]


def delta_of(event: Event, parsing: AnswerParsing) -> Delta:
    if isinstance(event, Content):
        return Delta(content=event.text)
    if isinstance(event, Reasoning):
        return Delta(reasoning=event.text, reasoning_content=event.text)
    if isinstance(event, CallArguments):
        return Delta(tool_calls=[ToolCallDelta(event.index, FunctionDelta(event.text))])
    begun = ToolCallDelta(
        event.index, FunctionDelta("", event.name), call_id(event, parsing), "function"
    )
    return Delta(tool_calls=[begun])


def shown_reason(reason: str, *, called: bool, named: bool) -> str:
    """Choose the finish_reason to show: a truncated answer says so, whatever it holds. For a call
    of the one tool that the client named (named), OpenAI shows `stop`."""
    return CALLS_REASON if called and not named and reason == FinishReason.STOP else reason


def call_id(begun: CallStart, parsing: AnswerParsing, prefix: str = "call_") -> str:
    """Return the model's own call id, if its template shows ids again; else one of the template's
    form, or the API's, which has a prefix."""
    if begun.id:
        return begun.id
    length = 0 if parsing.calls is None else parsing.calls.id_chars
    if length:
        return "".join(secrets.choice(_ID_SIGNS) for _ in range(length))
    return f"{prefix}{uuid.uuid4().hex[:24]}"
