# ruff: noqa: E501
"""Calls of every family, drawn and then broken in every way: whole and pieces agree, and what is
called can be run."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from atom.answer_parsing import AnswerParsing, CallStart, Event
from atom.answer_parsing.reasoning_parser import THINK, ReasoningStart
from atom.entrypoints.anthropic.message_events import input_of
from tests.engine.answer_parsing.pieces import calls_of, content_of, events_of, joined
from tests.engine.answer_parsing.written import WITH_JSON, WRITERS, plain
from tests.support.random_search import examples

_S, _I, _N, _B = ({"type": kind} for kind in ("string", "integer", "number", "boolean"))
TOOLS: dict[str, Any] = {
    "write_file": {
        "type": "object",
        "properties": {"path": _S, "text": _S, "lines": {"type": "array", "items": _I}},
    },
    "set-flag": {"type": "object", "properties": {"on": _B, "by": _N, "more": {"type": "object"}}},
    "now": {"type": "object", "properties": {}},
}
_WORDS = ("Paris", "naïve 日本 😀", "def f(x):\n    return {'a': [x]}\n", "it's", 'say "hi"', "a, b",
          "C:\\new\\table", "", "#!/bin/sh\n# 1 < 2 && x", "</p>", "{}", "[1]", "true", "7")  # fmt: skip
_VALUES: dict[str, Callable[[random.Random], Any]] = {
    "string": lambda draw: draw.choice(_WORDS),
    "integer": lambda draw: draw.randint(-3, 1 << 40),
    "number": lambda draw: draw.choice([0.5, -2, 1e9]),
    "boolean": lambda draw: draw.random() < 0.5,
    "array": lambda draw: [draw.randint(0, 9) for _ in range(draw.randint(0, 3))],
    "object": lambda draw: {"key": draw.choice(_WORDS), "in": {"list": [None, True, "x"]}},
}


def drawn_call(draw: random.Random) -> tuple[str, dict[str, Any]]:
    """A call that keeps to its tool's schema."""
    name = draw.choice([*TOOLS])
    return name, {
        key: _VALUES[schema["type"]](draw)
        for key, schema in TOOLS[name]["properties"].items() if draw.random() < 0.8
    }  # fmt: skip


def parsing_of(name: str) -> AnswerParsing:
    parsing = AnswerParsing(calls=WRITERS[name][0], tools=TOOLS, marks=THINK)
    if name == "openai":
        parsing = replace(parsing, marks=None, reasoning=ReasoningStart.POSSIBLE)
    return parsing


def pieces_of(draw: random.Random, text: str) -> list[str]:
    cuts = sorted(draw.randint(0, len(text)) for _ in range(6))
    return [text[start:end] for start, end in pairwise([0, *cuts, len(text)])]


def agreed(name: str, answer: str, draw: random.Random, *, ended: bool) -> list[Event]:
    """The events, however the answer is cut into pieces; each call is one that can be run."""
    parsing = parsing_of(name)
    whole = events_of(parsing, [answer], ended=ended)
    for pieces in (list(answer), pieces_of(draw, answer)):
        assert joined(events_of(parsing, pieces, ended=ended)) == whole, answer
    for called, arguments in calls_of(whole):
        assert called in TOOLS
        if ended:
            assert isinstance(json.loads(arguments, parse_constant=_refuse), dict), answer
        else:  # what a client of a stream puts together
            assert isinstance(input_of(arguments), dict), answer
    return whole


def _refuse(word: str) -> Any:
    raise AssertionError(f"{word} is not JSON")


# ---- breakages: the answer, and whether what was meant must be found all the same ---------------

Breakage = Callable[[random.Random, str, str], str]


def _marks(name: str) -> Sequence[str]:
    family = WRITERS[name][0]
    section = family.notation.section
    return [mark for mark in (*family.marks, *section, family.notation.end) if len(mark) > 1]


def _standing(draw: random.Random, name: str, answer: str) -> tuple[str, int]:
    marks = [mark for mark in _marks(name) if mark in answer] or [answer[:1]]
    mark = draw.choice(marks)
    places = [at for at in range(len(answer)) if answer.startswith(mark, at)]
    return mark, draw.choice(places)


def drop_mark(draw: random.Random, name: str, answer: str) -> str:
    mark, at = _standing(draw, name, answer)
    return answer[:at] + answer[at + len(mark) :]


def double_mark(draw: random.Random, name: str, answer: str) -> str:
    mark, at = _standing(draw, name, answer)
    return answer[:at] + mark + answer[at:]


def insert_mark(draw: random.Random, name: str, answer: str) -> str:
    mark, _ = _standing(draw, name, answer)
    at = draw.randint(0, len(answer))
    return answer[:at] + mark + answer[at:]


def cut_mark(draw: random.Random, name: str, answer: str) -> str:
    mark, at = _standing(draw, name, answer)
    return answer[: at + len(mark) // 2] + answer[at + len(mark) :]


def swap_quotes(draw: random.Random, name: str, answer: str) -> str:
    return answer.translate(str.maketrans("\"'", "'\""))


def one_quote(draw: random.Random, name: str, answer: str) -> str:
    places = [at for at, sign in enumerate(answer) if sign in "\"'"] or [0]
    at = draw.choice(places)
    return answer[:at] + draw.choice(["", "'", '"', '""']) + answer[at + 1 :]


def any_sign(draw: random.Random, name: str, answer: str) -> str:
    at = draw.randint(0, max(0, len(answer) - 1))
    sign = draw.choice(["", ",", "{", "}", "[", "]", "\n", "<", ">", "\\", "#", "/", "(", ")", "="])
    return answer[:at] + sign + answer[at + draw.randint(0, 1) :]


def twice(draw: random.Random, name: str, answer: str) -> str:
    return answer + draw.choice(["", "\n", ", ", "; "]) + answer


def prose(draw: random.Random, name: str, answer: str) -> str:
    return f"I look.\n{answer}\nThat is it."


BREAKAGES = (drop_mark, double_mark, insert_mark, cut_mark, swap_quotes, one_quote, any_sign, twice,
             prose)  # fmt: skip


@pytest.mark.singles
@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("breakage", BREAKAGES)
def test_a_broken_call_is_one_that_can_be_run_or_text(name: str, breakage: Breakage) -> None:
    draw = random.Random(f"{name} {breakage.__name__}")
    for _ in range(examples(6, more=40)):
        calls = [drawn_call(draw) for _ in range(draw.randint(1, 2))]
        answer = breakage(draw, name, WRITERS[name][1](calls))
        for _ in range(draw.randint(0, 1)):
            answer = draw.choice(BREAKAGES)(draw, name, answer)
        agreed(name, answer, draw, ended=draw.random() < 0.7)


@pytest.mark.sampled(10)
@pytest.mark.parametrize("name", WRITERS)
def test_a_call_that_ends_anywhere_is_one_that_can_be_run_or_text(name: str) -> None:
    draw = random.Random(name)
    for _ in range(examples(1, more=40)):
        calls = [drawn_call(draw)]
        answer = WRITERS[name][1](calls)
        for end in range(len(answer)):
            for ended in (True, False):
                found = agreed(name, answer[:end], draw, ended=ended)
                made = [event for event in found if isinstance(event, CallStart)]
                assert len(made) <= 1


# ---- breakages behind which what was meant is found ----------------------------------------------


def _python(value: Any) -> str:
    return repr(value)


def _commas(value: Any) -> str:
    return plain(value)[:-1] + ",}" if value else "{,}"


def _comments(value: Any) -> str:
    return f"{{ // so\n{plain(value)[1:-1]} /* and */ }}"


def _on_lines(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2)


def _as_text(value: Any) -> str:
    return json.dumps(plain(value))


def _one_too_many(value: Any) -> str:
    return plain(value) + "}"


def _written_again(value: Any) -> str:
    return plain(value) + plain(value)


@pytest.mark.parametrize("name", WITH_JSON)
@pytest.mark.parametrize(
    "dumps", [_python, _commas, _comments, _on_lines, _as_text, _one_too_many, _written_again]
)
def test_arguments_in_another_form_are_those_that_were_meant(
    name: str, dumps: Callable[[Any], str]
) -> None:
    """However the object is written, and whatever its strings hold. Two objects in place of one
    count as the first only where a mark closes the call."""
    draw = random.Random(f"{name} {dumps.__name__}")
    if dumps is _written_again and not WRITERS[name][0].mark:
        return
    for _ in range(examples(6, more=40)):
        calls = [drawn_call(draw)]
        answer = WRITERS[name][1](calls, dumps)
        found = agreed(name, answer, draw, ended=True)
        assert [(n, json.loads(text)) for n, text in calls_of(found)] == calls, answer
        assert content_of(found) == "", answer
