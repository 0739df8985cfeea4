"""The grammars of forced answers: what they let a model write, reasoning included, is what parsers
read, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from atom.answer_parsing import AnswerParsing, Content, Reasoning
from atom.answer_parsing.reasoning_parser import THINK, ReasoningStart
from atom.answer_parsing.structural_tag import (
    after_reasoning,
    calls,
    calls_when_begun,
    json_value,
)
from atom.answer_parsing.tool_parsers.table import HERMES
from atom.structured_outputs import GrammarSpec
from tests.engine.answer_parsing.pieces import calls_of, events_of
from tests.engine.answer_parsing.written import WRITERS, hermes, plain
from tests.support.structured_output.guided_sequences import GuidedSequences

SCHEMAS = {
    "weather": {
        "type": "object",
        "properties": {"city": {"type": "string", "minLength": 2, "maxLength": 5}},
        "required": ["city"],
    },
    "time": {"type": "object", "properties": {}},
}
# Strings are written as they are there, so that any value may be one.
BARE = ("qwen3_coder", "glm45", "seed_oss", "minimax_m2")
Writable = Callable[[dict[str, Any], str], bool]


@pytest.fixture(scope="module")
def writable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Writable]:
    """Whether a text is a whole answer under a structural tag."""
    guided = GuidedSequences(tmp_path_factory.mktemp("tokenizer"))

    def check(tag: dict[str, Any], text: str) -> bool:
        return guided.writes(GrammarSpec("structural_tag", json.dumps(tag)), text)

    yield check
    guided.close()


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", WRITERS)
def test_what_is_enforced_is_what_is_read(writable: Writable, name: str) -> None:
    family, write = WRITERS[name]
    # A call of harmony's is ended by an end token.
    paris, time, both = (
        write(made, plain).removesuffix("<|call|>")
        for made in (
            [("weather", {"city": "Paris"})],
            [("time", {})],
            [("weather", {"city": "Paris"}), ("time", {})],
        )
    )
    several = after_reasoning(ReasoningStart.OVER, calls(family, SCHEMAS, several=True))
    single = after_reasoning(ReasoningStart.OVER, calls(family, SCHEMAS, several=False))
    for tag in (several, single):
        assert writable(tag, paris)
        assert writable(tag, time)
    assert writable(several, both) is (name != "openai")
    assert not writable(single, both)
    wrong = [
        write([called], plain).removesuffix("<|call|>")
        for called in (
            ("weather", {"city": "P"}), ("weather", {"city": "Palermo"}), ("weather", {}),
            ("weather", {"city": 3}), ("time", {"a": 1}), ("tim", {}),
        )
        if called[1] != {"city": 3} or name not in BARE
    ]  # fmt: skip
    for text in ("", "It is warm.", paris + " ", paris[:-1], *wrong):
        assert not writable(several, text), text
    parsing = parsing_of(name)
    found = events_of(parsing, both, ended=True)
    assert [(called, json.loads(text)) for called, text in calls_of(found)] == [
        ("weather", {"city": "Paris"}),
        ("time", {}),
    ]


def parsing_of(name: str) -> AnswerParsing:
    family, _ = WRITERS[name]
    marks = None if name == "openai" else THINK
    start = ReasoningStart.POSSIBLE if name == "openai" else ReasoningStart.OVER
    return AnswerParsing(reasoning=start, marks=marks, calls=family, tools=SCHEMAS)


# What a property of a schema says, a value that fits and one that does not, as it is read back.
TYPED = [
    ({"type": "string"}, "a b\n</c>", None),
    ({"type": "string", "enum": ["a", "b c"]}, "b c", "b"),
    ({"type": "string", "pattern": "^a+$"}, "aa", "ab"),
    ({"type": "string", "minLength": 2, "maxLength": 3}, "abc", "abcd"),
    ({"type": "integer", "minimum": 0, "maximum": 20}, 12, 21),
    ({"type": "boolean"}, True, 1),
    ({"type": "array", "items": {"type": "integer"}}, [1, 2], ["a"]),
    ({"$ref": "#/$defs/point"}, {"x": 1}, {"y": 1}),
    ({"enum": ["a", 1]}, 1, 2),
    ({"type": ["integer", "null"]}, None, "a"),
    ({"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 1}]}, 77, "bb"),
]
POINT = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", WRITERS)
def test_arguments_are_kept_to_their_schema_in_every_notation(
    writable: Writable, name: str
) -> None:
    family, write = WRITERS[name]
    properties = {f"v{place}": schema for place, (schema, _, _) in enumerate(TYPED)}
    root = {"type": "object", "properties": properties, "$defs": {"point": POINT}}
    root |= {"required": ["v0"]}
    tag = after_reasoning(ReasoningStart.OVER, calls(family, {"f": root}, several=True))
    parsing = replace(parsing_of(name), tools={"f": root})
    for place, (_, fitting, other) in enumerate(TYPED):
        for value, fits in ((fitting, True), (other, False)):
            values = {"v0": "x", f"v{place}": value}
            text = write([("f", values)], plain).removesuffix("<|call|>")
            if value is None and not fits:
                continue
            assert writable(tag, text) is fits, text
            ((_, found),) = calls_of(events_of(parsing, text, ended=True))
            assert not fits or json.loads(found) == values


STRICT = {"weather": SCHEMAS["weather"], "time": {"type": "object", "properties": {"zone": {}}}}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", WRITERS)
def test_free_text_may_hold_calls_that_fit(writable: Writable, name: str) -> None:
    family, write = WRITERS[name]
    head = "<|channel|>commentary<|message|>" if name == "openai" else ""
    tail = "<|end|><|start|>assistant" if name == "openai" else ""
    said = "<|channel|>final<|message|>It is warm." if name == "openai" else "It is { warm."

    def text(*made: tuple[str, dict[str, Any]]) -> str:
        return f"{head}I look.\n{tail}{write(made, plain)}".removesuffix("<|call|>")

    tag = after_reasoning(ReasoningStart.OVER, calls_when_begun(family, STRICT, several=True))
    one = after_reasoning(ReasoningStart.OVER, calls_when_begun(family, STRICT, several=False))
    assert writable(tag, said)
    assert writable(one, said)
    rome, time = ("weather", {"city": "Rome"}), ("time", {"zone": "any at all"})
    assert writable(tag, text(rome))
    assert writable(one, text(time))
    assert not writable(one, text(rome, time))
    if name != "openai":
        assert writable(tag, text(rome, time))
    assert not writable(tag, text(("weather", {"city": "P"})))
    if family.mark or name == "openai":  # else nothing tells it from other text
        assert not writable(tag, text(("other", {})))


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
    text = answer.replace("{call}", hermes([("time", {})]))
    tag = after_reasoning(start, calls(HERMES, SCHEMAS, several=False))
    assert writable(tag, text) is allowed
    if allowed:
        parsing = AnswerParsing(reasoning=start, calls=HERMES, tools=SCHEMAS)
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
