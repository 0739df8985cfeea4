"""Answers in pieces, and events as one would compare them: pieces of one thing joined."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st

from atom.answer_parsing import (
    AnswerParsing,
    CallArguments,
    CallStart,
    Content,
    Event,
    Reasoning,
)
from atom.answer_parsing.reasoning_parser import THINK, ReasoningMarks, ReasoningStart
from atom.answer_parsing.tool_parsers import HARMONY
from tests.engine.answer_parsing.written import FAMILIES, WRITERS

TOOLS: dict[str, Any] = {
    "weather": {"type": "object", "properties": {"city": {"type": "string"}, "days": {}}},
    "time": None,
}
# What answers with markup, right or wrong, are made of.
PARTS = (
    "<think>", "</think>", "<tool_call>", "</tool_call>", "<|python_tag|>", "<tool", "</", "think>",
    '{"name": "weather", "arguments": {"city": "Paris"}}', '{"name": "time", "parameters": {}}',
    '{"type": "function", "name": "weather", "parameters": {"a": [1, {"b": "}\\""}]}}',
    '{"arguments": {"x": 1}, "name": "time"}', '{"name": "time", "arguments": "{}"}',
    '{"name": ', '"weather"', ', "arguments": ', "{", "}", "[", "]", '"', "\\", ":", ";", ",",
    '{"a": 1}', "null", "7", " ", "\n", "\n\n", "text", "ü", "<", ">", "x", " " * 9, "\n" * 33,
)  # fmt: skip
_SOME_CALLS = [("weather", {"city": "a </tool_call> b", "days": [1, {"x": None}]}), ("time", {})]
# What its own answers are made of, whole and in parts.
_OWN_PARTS = {
    "llama4_pythonic": ("[weather(", "time()", 'city="Pa', "city='a\\'b'", "days=[1, {'x': None}]",
                        ")", ", ", "]", "<|python_start|>", "<|python_end|>", "weather(a=open())"),
    "lfm2": ("<|tool_call_start|>", "[weather(", "time()", 'city="Pa', "days=[1, {'x': None}]", ")",
             ", ", "]", "<|tool_call_end|>", "weather(a=open())"),
    "mistral": ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "a1B2c3D4e", "weather", "[TOOL_CALLS] ["),
    "qwen3_coder": ("<tool_call>\n", "<function=weather>", "<function=time>\n", "</function>",
                    "<parameter=city>", "<parameter=days>\n", "\n</parameter>\n", "</parameter",
                    "</tool_call>"),
    "glm45": ("<tool_call>weather\n", "<tool_call>time", "<arg_key>city</arg_key>\n",
              "<arg_key>days</arg_key>", "<arg_value>", "</arg_value>\n", "</arg_val",
              "</tool_call>"),
    "kimi_k2": ("<|tool_calls_section_begin|>", "<|tool_call_begin|>", "functions.time:0",
                "<|tool_call_argument_begin|>", "<|tool_call_end|>", "<|tool_calls_section_end|>"),
    "deepseek_v3": ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "function<｜tool▁sep｜>",
                    "weather\n```json\n", "\n```", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"),
    "deepseek_v31": ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>weather<｜tool▁sep｜>", "time",
                     "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"),
    "deepseek_v32": ("<｜DSML｜function_calls>\n", '<｜DSML｜invoke name="weather">\n',
                     '<｜DSML｜parameter name="city" string="true">', "</｜DSML｜parameter>\n",
                     '<｜DSML｜parameter name="days" string="false">', "</｜DSML｜invoke>",
                     "</｜DSML｜function_calls>", "</｜DSML｜"),
    "minimax_m2": ("<minimax:tool_call>\n", '<invoke name="weather">\n', "</parameter>\n", "</par",
                   '<parameter name="city">', '<parameter name="days">', "</invoke>",
                   "</minimax:tool_call>"),
    "seed_oss": ("<seed:tool_call>\n", "<function=weather>", "<function=time>\n", "</function>",
                 "<parameter=city>", "<parameter=days>\n", "</parameter>\n", "</parameter",
                 "</seed:tool_call>"),
    "hunyuan_a13b": ("<tool_calls>", "<tool_calls>[", "]</tool_calls>", "</tool_calls>", "</tool"),
    "phi4_mini_json": ("functools", "functools[", "func", "}]", "}, {"),
    "granite": ("<|tool_call|>", "<|tool_call|>[", "<tool_call>[", "<|tool", "}]", "}, {"),
    "nemotron_json": ("<TOOLCALL>", "<TOOLCALL>[", "]</TOOLCALL>", "</TOOLCALL>", "<TOOL"),
    "gemma4": ("<|tool_call>", "call:weather{", "call:time{", "city:", '<|"|>', "days:[1,{x:null}]",
               ",", "}", "<tool_call|>", "<|too", "<|", "}<tool_call|>", "city"),
    "olmo3": ("<function_calls>", "weather(", "time()", 'city="Pa', "days=[1, {'x': None}]", ")",
              "</function_calls>", "</function", "weather(a=open())"),
    "openai": ("<|channel|>", "analysis", "commentary", "final", " to=functions.weather ",
               "<|message|>", "<|end|>", "<|start|>assistant", "<|call|>", "<|constrain|>json",
               "<|channel|>analysis<|message|>", "<|channel|>final<|message|>", "<|", "to="),
}  # fmt: skip
_MISTRAL = ReasoningMarks("[THINK]", "[/THINK]")

answers = st.lists(st.sampled_from(PARTS), max_size=14).map("".join)
parsings = st.builds(
    AnswerParsing,
    reasoning=st.sampled_from(ReasoningStart),
    calls=st.sampled_from([None, *FAMILIES]),
    tools=st.just(TOOLS),
    several=st.booleans(),
)


@st.composite
def family_answers(draw: st.DrawFn) -> tuple[AnswerParsing, str]:
    """A parsing, and an answer of parts that its family knows."""
    name = draw(st.sampled_from([*WRITERS]))
    family, write = WRITERS[name]
    whole = write(draw(st.lists(st.sampled_from(_SOME_CALLS), min_size=1, max_size=2)))
    own = _OWN_PARTS.get(name, ()) or _OWN_PARTS.get(family.name, ())
    marks = draw(st.sampled_from([THINK, _MISTRAL]))
    thoughts = (marks.opening, marks.closing, "so")
    parts = st.sampled_from([*own, *own, whole, *thoughts, *PARTS])
    text = "".join(draw(st.lists(parts, max_size=12)))
    parsing = AnswerParsing(
        reasoning=draw(st.sampled_from(ReasoningStart)),
        marks=None if family is HARMONY else marks,
        calls=family,
        tools=TOOLS,
    )
    return parsing, text[: draw(st.integers(0, len(text)))] if draw(st.booleans()) else text


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
