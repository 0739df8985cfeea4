"""Answers in pieces, and events as one would compare them: pieces of one thing joined."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from hypothesis import strategies as st

from atom.answer_parsing import (
    AnswerParsing,
    CallArguments,
    CallStart,
    Content,
    Event,
    Reasoning,
)
from atom.answer_parsing.families import HERMES, LLAMA3_JSON
from atom.answer_parsing.reasoning import ReasoningStart

TOOLS = ("weather", "time")
# What answers with markup, right or wrong, are made of.
PARTS = (
    "<think>", "</think>", "<tool_call>", "</tool_call>", "<|python_tag|>", "<tool", "</", "think>",
    '{"name": "weather", "arguments": {"city": "Paris"}}', '{"name": "time", "parameters": {}}',
    '{"type": "function", "name": "weather", "parameters": {"a": [1, {"b": "}\\""}]}}',
    '{"arguments": {"x": 1}, "name": "time"}', '{"name": "time", "arguments": "{}"}',
    '{"name": ', '"weather"', ', "arguments": ', "{", "}", "[", "]", '"', "\\", ":", ";", ",",
    '{"a": 1}', "null", "7", " ", "\n", "\n\n", "text", "ü", "<", ">", "x", " " * 9, "\n" * 33,
)  # fmt: skip

answers = st.lists(st.sampled_from(PARTS), max_size=14).map("".join)
parsings = st.builds(
    AnswerParsing,
    reasoning=st.sampled_from(ReasoningStart),
    calls=st.sampled_from([None, HERMES, LLAMA3_JSON]),
    tools=st.just(TOOLS),
    several=st.booleans(),
)


@st.composite
def cut(draw: st.DrawFn, text: str) -> list[str]:
    """The text in pieces, some of them empty."""
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=12)))
    bounds = [0, *cuts, len(text)]
    return [text[start:end] for start, end in pairwise(bounds)]


def events_of(parsing: AnswerParsing, pieces: Iterable[str], *, ended: bool = False) -> list[Event]:
    """ended: by the model, and not cut."""
    parser = parsing.parser()
    found = [event for piece in pieces for event in parser.feed(piece)]
    return joined(found + parser.finish(ended=ended))


def joined(events: Sequence[Event]) -> list[Event]:
    whole: list[Event] = []
    for event in events:
        last = whole[-1] if whole else None
        if isinstance(event, Content) and isinstance(last, Content):
            whole[-1] = Content(last.text + event.text)
        elif isinstance(event, Reasoning) and isinstance(last, Reasoning):
            whole[-1] = Reasoning(last.text + event.text)
        elif isinstance(event, CallArguments) and isinstance(last, CallArguments):
            whole[-1] = CallArguments(last.index, last.text + event.text)
        else:
            whole.append(event)
    return whole


def content_of(events: Sequence[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Content))


def calls_of(events: Sequence[Event]) -> list[tuple[str, str]]:
    """(name, arguments) of each call."""
    calls: list[tuple[str, str]] = []
    for event in events:
        if isinstance(event, CallStart):
            assert event.index == len(calls)
            calls.append((event.name, ""))
        elif isinstance(event, CallArguments):
            name, arguments = calls[event.index]
            calls[event.index] = name, arguments + event.text
    return calls
