"""What a chat's answers may hold besides content, and how it is shown: tool calls and reasoning.

From a request and its prompt to the `AnswerParsing` of its answers; from the parser's events to the
API's messages and deltas. The parsers themselves are atom.answer_parsing's.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from msgspec import UNSET

from atom.answer_parsing import (
    AnswerFormats,
    AnswerParsing,
    CallArguments,
    CallStart,
    Content,
    Event,
    Reasoning,
)
from atom.answer_parsing.families import PLAIN_JSON
from atom.answer_parsing.reasoning import ReasoningStart, reasoning_start
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


def answer_parsing(
    formats: AnswerFormats, request: ChatCompletionRequest, tools: Sequence[Tool], prompt: str
) -> AnswerParsing | None:
    """Choose how answers to a chat request are parsed. tools: that may be called; prompt: as the
    model reads it. None: answers are all content.

    Those that keep to a structure of the client's own hold no calls; JSON on one line comes at
    once, because what is enforced behind reasoning cannot say so."""
    if request.asks_for_one_line:
        return None
    calls = formats.calls if tools and not request.asks_for_structure else None
    if request.forces_call and calls is None:
        calls = PLAIN_JSON
    start = ReasoningStart.OVER
    if formats.reasoning is not None:
        start = reasoning_start(prompt, always=formats.reasoning.always)
    parsing = AnswerParsing(
        reasoning=start,
        shows_reasoning=request.include_reasoning is not False,
        calls=calls,
        tools=tuple(tool.name for tool in tools),
        several=request.parallel_tool_calls is not False and not request.names_tool,
    )
    return parsing if parsing.needed else None


def message_of(parsing: AnswerParsing, text: str, reason: str) -> ChatAnswer:
    """A whole answer's; reason: why it ended."""
    parser = parsing.parser()
    events: list[Event] = []
    for start in range(0, len(text), _PART_CHARACTERS):  # what is held back is small then
        events += parser.feed(text[start : start + _PART_CHARACTERS])
    events += parser.finish(ended=reason == FinishReason.STOP)
    content = "".join(event.text for event in events if isinstance(event, Content))
    reasoning = "".join(event.text for event in events if isinstance(event, Reasoning))
    calls = _calls_of(events)
    nothing_said = not content and bool(calls or reasoning)
    return ChatAnswer(
        None if nothing_said else content,
        reasoning=reasoning or UNSET,
        reasoning_content=reasoning or UNSET,
        tool_calls=calls or UNSET,
    )


def _calls_of(events: Sequence[Event]) -> list[AnswerToolCall]:
    calls = []
    for event in events:
        if isinstance(event, CallStart):
            arguments = (
                piece.text
                for piece in events
                if isinstance(piece, CallArguments) and piece.index == event.index
            )
            calls.append(AnswerToolCall(_call_id(), CalledFunction(event.name, "".join(arguments))))
    return calls


def delta_of(event: Event) -> Delta:
    if isinstance(event, Content):
        return Delta(content=event.text)
    if isinstance(event, Reasoning):
        return Delta(reasoning=event.text, reasoning_content=event.text)
    if isinstance(event, CallArguments):
        return Delta(tool_calls=[ToolCallDelta(event.index, FunctionDelta(event.text))])
    begun = ToolCallDelta(event.index, FunctionDelta("", event.name), _call_id(), "function")
    return Delta(tool_calls=[begun])


def shown_reason(reason: str, *, called: bool) -> str:
    """Choose the finish_reason that is shown: an answer that was cut says so, whatever it holds."""
    return CALLS_REASON if called and reason == FinishReason.STOP else reason


def _call_id() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"
