"""Calls as models really write them, mistakes included."""

from __future__ import annotations

import pytest

from atom.answer_parsing import AnswerParsing, CallArguments, CallStart, Content
from atom.answer_parsing.tool_parsers.table import HERMES, LLAMA3_JSON
from tests.engine.answer_parsing.pieces import TOOLS, calls_of, content_of, events_of

PARIS = '{"city": "Paris"}'
QWEN = AnswerParsing(calls=HERMES, tools=TOOLS)
LLAMA = AnswerParsing(calls=LLAMA3_JSON, tools=TOOLS)
MARKED = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
BARE = '{"name": "weather", "parameters": {"city": "Paris"}}'


@pytest.mark.parametrize(
    ("answer", "calls", "content"),
    [
        (MARKED, [("weather", PARIS)], ""),
        (f"I look.\n{MARKED}\n", [("weather", PARIS)], "I look."),
        (f"{MARKED}\n{MARKED}", [("weather", PARIS), ("weather", PARIS)], ""),
        (MARKED.removesuffix("</tool_call>"), [("weather", PARIS)], ""),
        (MARKED.removesuffix("\n</tool_call>") + MARKED, [("weather", PARIS)] * 2, ""),
        (MARKED.replace("}}", "}}}"), [("weather", PARIS)], ""),
        (f"{MARKED}\n\nThere.", [("weather", PARIS)], "There."),
        ('<tool_call>{"name": "time"}</tool_call>', [("time", "{}")], ""),
        ('<tool_call>{"name": "time", "arguments": null}</tool_call>', [("time", "{}")], ""),
        ('<tool_call>{"name": "time", "arguments": ""}</tool_call>', [("time", "{}")], ""),
        (
            '<tool_call>{"arguments": "{\\"a\\": 1}", "name": "time"}</tool_call>',
            [("time", '{"a": 1}')],
            "",
        ),
        ('<tool_call>{"id": 3, "name": "time", "arguments": {}}</tool_call>', [("time", "{}")], ""),
        # What only looks like a call.
        ("<tool_call> is a mark", [], "<tool_call> is a mark"),
        ('<tool_call>{"name": "no"}</tool_call>', [], '<tool_call>{"name": "no"}</tool_call>'),
        ("<tool_call>\n[1, 2]\n</tool_call>", [], "<tool_call>\n[1, 2]\n</tool_call>"),
        ('<tool_call>{"name": 3}</tool_call>', [], '<tool_call>{"name": 3}</tool_call>'),
        (
            '<tool_call>{"arguments": {}}</tool_call>',
            [],
            '<tool_call>{"arguments": {}}</tool_call>',
        ),
        (f"<tool_call>{MARKED}", [("weather", PARIS)], ""),
        ("a < b </tool_call>", [], "a < b </tool_call>"),
        # Cut off.
        (MARKED[:-19], [("weather", '{"city": "Pa')], ""),
        ('<tool_call>\n{"name": "wea', [], '<tool_call>\n{"name": "wea'),
        ("well <tool_c", [], "well <tool_c"),
    ],
)
def test_hermes(answer: str, calls: list[tuple[str, str]], content: str) -> None:
    events = events_of(QWEN, [answer])
    assert calls_of(events) == calls
    assert content_of(events) == content


@pytest.mark.parametrize(
    ("answer", "calls", "content"),
    [
        (BARE, [("weather", PARIS)], ""),
        (f"<|python_tag|>{BARE}", [("weather", PARIS)], ""),
        (f"Sure. <|python_tag|> {BARE}", [("weather", PARIS)], "Sure."),
        (f"{BARE}; {BARE}", [("weather", PARIS)] * 2, ""),
        (f"{BARE}\n{BARE};", [("weather", PARIS)] * 2, ""),
        (BARE.replace("parameters", "arguments"), [("weather", PARIS)], ""),
        (BARE.replace("{", '{"type": "function", ', 1), [("weather", PARIS)], ""),
        (f"{BARE}; so it is", [("weather", PARIS)], "; so it is"),
        # Objects that were asked for.
        ('{"name": "Ada", "parameters": {}}', [], '{"name": "Ada", "parameters": {}}'),
        ('{"name": "weather", "age": 3}', [], '{"name": "weather", "age": 3}'),
        ('{"name": "weather"} ', [], '{"name": "weather"} '),
        ('{"a": {"b": 1}}', [], '{"a": {"b": 1}}'),
        ("if x { y }", [], "if x { y }"),
        ('<|python_tag|>print("hi")', [], '<|python_tag|>print("hi")'),
        (BARE[:-5], [("weather", '{"city": "Par')], ""),
        ("<|python_tag|> ", [], "<|python_tag|> "),
    ],
)
def test_llama3_json(answer: str, calls: list[tuple[str, str]], content: str) -> None:
    events = events_of(LLAMA, [answer])
    assert calls_of(events) == calls
    assert content_of(events) == content


def test_a_call_is_told_as_soon_as_it_is_certain_and_then_piece_by_piece() -> None:
    parser = QWEN.parser()
    assert parser.feed('I look. <tool_call>{"name": "weather", "arg') == [Content("I look.")]
    assert not parser.called
    assert parser.feed('uments": {"city"') == []
    assert not parser.called
    assert parser.feed(": ") == [CallStart(0, "weather"), CallArguments(0, '{"city": ')]
    assert parser.called
    assert parser.feed('"Par') == [CallArguments(0, '"Par')]
    assert parser.feed('is"') == [CallArguments(0, "is")]  # the quote may be text
    assert parser.feed("}}</tool") == [CallArguments(0, '"}')]
    assert parser.feed("_call>\n") == []
    assert parser.finish(ended=True) == []


def test_only_the_first_call_counts_where_one_was_asked_for() -> None:
    parsing = AnswerParsing(calls=HERMES, tools=TOOLS, several=False)
    events = events_of(parsing, [f"{MARKED}\n{MARKED.replace('weather', 'time')}"])
    assert calls_of(events) == [("weather", PARIS)]


def test_text_is_passed_on_at_once() -> None:
    """But for blanks, which may stand before a call."""
    parser = LLAMA.parser()
    assert parser.feed("It is") == [Content("It is")]
    assert parser.feed(" ") == []
    assert parser.feed("warm.") == [Content(" warm.")]
