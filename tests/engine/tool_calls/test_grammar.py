"""The grammars of forced answers: what they let a model write, reasoning included, is what parsers
read, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from atom.answer_parsing import AnswerParsing, Content, Reasoning
from atom.answer_parsing.families import HERMES, LLAMA3_JSON, CallFormat
from atom.answer_parsing.reasoning import ReasoningStart
from atom.answer_parsing.structural_tag import after_reasoning, calls, json_value
from atom.structured_outputs import GrammarSpec
from tests.engine.answer_parsing.pieces import calls_of, events_of
from tests.support.guided_sequences import GuidedSequences

SCHEMAS = {
    "weather": {
        "type": "object",
        "properties": {"city": {"type": "string", "minLength": 2, "maxLength": 5}},
        "required": ["city"],
    },
    "time": {"type": "object", "properties": {}},
}
Writable = Callable[[dict[str, Any], str], bool]


@pytest.fixture(scope="module")
def writable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Writable]:
    """Whether a text is a whole answer under a structural tag."""
    guided = GuidedSequences(tmp_path_factory.mktemp("tokenizer"))

    def check(tag: dict[str, Any], text: str) -> bool:
        return guided.writes(GrammarSpec("structural_tag", json.dumps(tag)), text)

    yield check
    guided.close()


def call(family: CallFormat, tool: str, arguments: str) -> str:
    return family.opening(tool) + arguments + family.after


@pytest.mark.parametrize("family", [HERMES, LLAMA3_JSON], ids=lambda family: family.name)
def test_what_is_enforced_is_what_is_read(writable: Writable, family: CallFormat) -> None:
    paris, time = call(family, "weather", '{"city": "Paris"}'), call(family, "time", "{}")
    both = paris + family.separator + time
    several = after_reasoning(ReasoningStart.OVER, calls(family, SCHEMAS, several=True))
    single = after_reasoning(ReasoningStart.OVER, calls(family, SCHEMAS, several=False))
    assert writable(several, paris)
    assert writable(single, paris)
    assert writable(several, both)
    assert not writable(single, both)
    for wrong in (
        "", "It is warm.", paris + " ", paris[:-1],
        call(family, "weather", '{"city": "P"}'), call(family, "weather", '{"city": "Palermo"}'),
        call(family, "weather", "{}"), call(family, "time", '{"a": 1}'), call(family, "tim", "{}"),
    ):  # fmt: skip
        assert not writable(several, wrong), wrong
    found = events_of(AnswerParsing(calls=family, tools=tuple(SCHEMAS)), both)
    assert calls_of(found) == [("weather", '{"city": "Paris"}'), ("time", "{}")]


@pytest.mark.parametrize(
    ("start", "answer", "allowed"),
    [
        (ReasoningStart.OVER, "{call}", True),
        (ReasoningStart.OVER, "<think>a</think>{call}", False),
        (ReasoningStart.POSSIBLE, "{call}", True),
        (ReasoningStart.POSSIBLE, "<think>\na <tool_call> b\n</think>\n\n{call}", True),
        (ReasoningStart.POSSIBLE, "<think>a</think>b{call}", False),
        (ReasoningStart.POSSIBLE, "<think>a</think>b</think>{call}", False),
        (ReasoningStart.POSSIBLE, "<think>a {call}", False),
        (ReasoningStart.POSSIBLE, "\n{call}", False),
        (ReasoningStart.POSSIBLE, "a{call}", False),
        (ReasoningStart.OPEN, "a\n</think>\n\n{call}", True),
        (ReasoningStart.OPEN, "{call}", False),
        (ReasoningStart.OPEN, "a</think>b</think>{call}", False),
    ],
)
def test_a_call_may_follow_reasoning_and_nothing_else(
    writable: Writable, start: ReasoningStart, answer: str, allowed: bool
) -> None:
    text = answer.replace("{call}", call(HERMES, "time", "{}"))
    tag = after_reasoning(start, calls(HERMES, SCHEMAS, several=False))
    assert writable(tag, text) is allowed
    if allowed:
        parsing = AnswerParsing(reasoning=start, calls=HERMES, tools=tuple(SCHEMAS))
        assert calls_of(events_of(parsing, text)) == [("time", "{}")]


@pytest.mark.parametrize(
    ("structure", "answer"),
    [
        (json_value(SCHEMAS["weather"]), '{"city": "Rome"}'),
        ({"type": "regex", "pattern": "[a-c]{2}"}, "ab"),
        ({"type": "grammar", "grammar": 'root ::= "yes" | other\nother ::= "no"'}, "no"),
    ],
)
def test_other_structures_follow_reasoning_too(
    writable: Writable, structure: dict[str, Any], answer: str
) -> None:
    tag = after_reasoning(ReasoningStart.POSSIBLE, structure)
    text = f"<think>\nhm\n</think>\n\n{answer}"
    assert writable(tag, text)
    assert writable(tag, answer)
    assert not writable(tag, f"{text}x")
    parsing = AnswerParsing(reasoning=ReasoningStart.POSSIBLE)
    assert events_of(parsing, text) == [Reasoning("hm"), Content(answer)]
