"""Work on an answer is linear in its length: calls of functions are counted, no time is taken."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from atom.answer_parsing import AnswerParsing
from atom.answer_parsing.reasoning_parser import THINK, ReasoningStart
from atom.entrypoints.openai.chat_parsing import message_of
from tests.engine.answer_parsing.written import WRITERS

TOOLS: dict[str, Any] = {"f": {"type": "object", "properties": {"a": {"type": "string"}}}}
_N = 60
_FACTOR = 4
_SLACK = 1.3


def steps(work: Callable[[], object]) -> int:
    """Calls of functions, those written in C among them."""
    count = 0

    def count_call(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(count_call)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def parsing_of(name: str, start: ReasoningStart) -> AnswerParsing:
    channels = name == "openai"
    return AnswerParsing(
        reasoning=ReasoningStart.POSSIBLE if channels else start,
        marks=None if channels else THINK,
        calls=WRITERS[name][0],
        tools=TOOLS,
    )


def _calls(name: str, count: int) -> str:
    return WRITERS[name][1]([("f", {})] * count)


def _beginnings(name: str, count: int) -> str:
    """The first half of a call, again and again: each looks like one that may still end."""
    call = WRITERS[name][1]([("f", {"a": "x"})])
    return call[: call.index("x")] * count


def _marks(name: str, count: int) -> str:
    begin = "[f(" if name == "llama4_pythonic" else "{"
    return (WRITERS[name][0].mark or begin) * count


@pytest.mark.sampled(21)
@pytest.mark.pairs
@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("answer", [_calls, _beginnings, _marks])
@pytest.mark.parametrize("start", [ReasoningStart.OVER, ReasoningStart.OPEN])
def test_the_message_of_an_answer_takes_work_in_proportion(
    name: str, answer: Callable[[str, int], str], start: ReasoningStart
) -> None:
    parsing = parsing_of(name, start)
    small, large = answer(name, _N), answer(name, _N * _FACTOR)
    growth = steps(lambda: message_of(parsing, large, "stop")) / steps(
        lambda: message_of(parsing, small, "stop")
    )
    assert growth < _SLACK * len(large) / len(small)


@pytest.mark.sampled(14)
@pytest.mark.singles
@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("start", [ReasoningStart.OVER, ReasoningStart.OPEN])
def test_thousands_of_calls_are_all_found(name: str, start: ReasoningStart) -> None:
    parsing = parsing_of(name, start)
    if not parsing.calls or not parsing.calls.mark:  # calls are not looked for in reasoning
        parsing = parsing_of(name, ReasoningStart.OVER)
    message = message_of(parsing, _calls(name, 2000), "stop")
    assert len(message.tool_calls or ()) == 2000
