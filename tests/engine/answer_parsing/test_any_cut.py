"""However a text is cut into pieces, the events are those of the whole text."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from atom.answer_parsing import AnswerParsing, Content, Reasoning
from atom.answer_parsing.reasoning_parser import THINK, ReasoningStart
from atom.answer_parsing.tool_parsers.table import HERMES
from tests.engine.answer_parsing.pieces import (
    TOOLS,
    answers,
    calls_of,
    content_of,
    cut,
    events_of,
    family_answers,
    parsings,
)
from tests.engine.answer_parsing.written import WITH_JSON, WRITERS, hermes
from tests.support.random_search import examples

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda values: (
        st.lists(values, max_size=3) | st.dictionaries(st.text(max_size=4), values, max_size=3)
    ),
    max_leaves=6,
)
arguments = st.dictionaries(st.text(max_size=6), json_values, max_size=3)


@settings(max_examples=examples(60, more=200))
@given(st.data(), parsings, answers, st.booleans())
def test_pieces_give_the_events_of_the_whole(
    data: st.DataObject, parsing: AnswerParsing, answer: str, ended: bool
) -> None:
    whole = events_of(parsing, [answer], ended=ended)
    assert events_of(parsing, data.draw(cut(answer)), ended=ended) == whole
    assert events_of(parsing, answer, ended=ended) == whole  # character by character


@settings(max_examples=examples(120, more=250))
@given(st.data(), family_answers(), st.booleans())
def test_pieces_of_a_familys_own_marks_give_the_events_of_the_whole(
    data: st.DataObject, case: tuple[AnswerParsing, str], ended: bool
) -> None:
    parsing, answer = case
    whole = events_of(parsing, [answer], ended=ended)
    assert events_of(parsing, data.draw(cut(answer)), ended=ended) == whole
    assert events_of(parsing, answer, ended=ended) == whole  # character by character


@given(st.data(), parsings, st.text())
def test_a_text_without_markup_comes_through_unchanged(
    data: st.DataObject, parsing: AnswerParsing, text: str
) -> None:
    pieces = data.draw(cut(text))
    expected = [Content(text)] if text else []
    if parsing.reasoning is ReasoningStart.OPEN:
        reasoning = "".join(
            event.text for event in events_of(parsing, pieces) if isinstance(event, Reasoning)
        )
        assert reasoning == text.lstrip("\r\n") or text.isspace()
    elif not text.lstrip().startswith("<think>"):
        assert events_of(parsing, pieces) == expected


names = st.sampled_from([*WRITERS])
# Keys that every notation can write.
keys = st.from_regex(r"[a-z_][a-z0-9_]{0,5}", fullmatch=True).filter(str.isidentifier)
# An end mark with what may follow it cannot be told from one that ends a value: hence the dashes.
strings = st.lists(
    st.sampled_from(["a", " ", '"', "'", "\\", "\n", "é", "</", "]", "}", ")", ",", "5", "null",
                     "</tool_call>", "</parameter>", "</arg_value>", "<|call|>", "[TOOL_CALLS]",
                     "<｜tool▁call▁end｜>", "</｜DSML｜parameter>", "```", "<|tool_call_end|>"]),
    max_size=5,
).map("-".join)  # fmt: skip
typed_values = st.recursive(
    st.integers(-5, 1 << 40)
    | st.booleans()
    | strings
    | st.floats(-9, 9).map(lambda x: round(x, 3)),
    lambda values: st.lists(values, max_size=2) | st.dictionaries(strings, values, max_size=2),
    max_leaves=5,
)
KINDS = {str: "string", int: "integer", bool: "boolean", float: "number", dict: "object",
         list: "array"}  # fmt: skip


def schema_of(values: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {key: {"type": KINDS[type(value)]} for key, value in values.items()},
    }


@settings(max_examples=examples(60, more=200))
@given(
    st.data(),
    names,
    st.lists(st.dictionaries(keys, typed_values, max_size=3), min_size=1, max_size=3),
    st.sampled_from(["", "Let me look.\n\n", "  "]),
)
def test_calls_as_a_family_writes_them_are_found(
    data: st.DataObject, name: str, calls: list[dict[str, Any]], before: str
) -> None:
    """Whatever marks stand inside their strings, and with the types of the tools' schemas."""
    family, write = WRITERS[name]
    tools = {f"tool_{place}": schema_of(values) for place, values in enumerate(calls)}
    made = list(zip(tools, calls, strict=True))
    marks = None if name == "openai" else THINK
    before = "" if name == "openai" else before
    parsing = AnswerParsing(calls=family, tools=tools, marks=marks)
    if marks is None:
        parsing = replace(parsing, reasoning=ReasoningStart.POSSIBLE)
    answer = before + write(made)
    events = events_of(parsing, data.draw(cut(answer)), ended=True)
    assert [(called, json.loads(text)) for called, text in calls_of(events)] == made
    assert content_of(events) == before.rstrip()


@given(st.data(), st.sampled_from(WITH_JSON), st.lists(arguments, min_size=1, max_size=3),
       st.booleans(), st.sampled_from([None, 1]))  # fmt: skip
def test_json_of_calls_may_be_written_in_any_way(
    data: st.DataObject, name: str, calls: list[Any], escapes: bool, indent: int | None
) -> None:
    family, write = WRITERS[name]
    made = [("weather", values) for values in calls]

    def dumps(value: Any) -> str:
        return json.dumps(value, ensure_ascii=escapes, indent=indent)

    parsing = AnswerParsing(calls=family, tools=TOOLS)
    if name == "openai":
        parsing = replace(parsing, marks=None, reasoning=ReasoningStart.POSSIBLE)
    events = events_of(parsing, data.draw(cut(write(made, dumps))), ended=True)
    assert [(called, json.loads(text)) for called, text in calls_of(events)] == made


@given(st.data(), answers, st.sampled_from(["", "\n"]))
def test_reasoning_and_content_are_told_apart_by_the_closing_mark(
    data: st.DataObject, answer: str, blank: str
) -> None:
    thoughts = "so <tool_call> or\n not"
    text = f"{blank}<think>\n{thoughts}\n</think>\n\n{answer}"
    parsing = AnswerParsing(reasoning=ReasoningStart.POSSIBLE)
    shown = answer.lstrip("\r\n")
    expected = [Reasoning(thoughts), *([Content(shown)] if shown else [])]
    assert events_of(parsing, data.draw(cut(text))) == expected


def damaged(text: str) -> str:
    """JSON with its control characters raw, as models write them."""
    for escape, sign in (("\\n", "\n"), ("\\t", "\t"), ("\\r", "\r"), ("\\u0007", "\a")):
        text = text.replace(escape, sign)
    return text


raw_texts = st.lists(
    st.sampled_from(["a", '"', "\n", "\t", "\r", "\a", "}", "]", "{", "</tool_call>", " ", "é"]),
    max_size=8,
).map("".join)
raw_arguments = st.dictionaries(
    st.sampled_from(["a", "b c", "d"]),
    st.recursive(
        raw_texts | st.integers() | st.none() | st.booleans(),
        lambda values: (
            st.lists(values, max_size=2) | st.dictionaries(raw_texts, values, max_size=2)
        ),
        max_leaves=4,
    ),
    min_size=1,
    max_size=3,
)


@given(st.data(), st.sampled_from(["hermes", "llama3_json"]), raw_arguments, st.integers(0, 3))
def test_arguments_are_json_whatever_is_raw_in_them_or_missing_at_their_end(
    data: st.DataObject, name: str, values: dict[str, Any], missing: int
) -> None:
    """What is missing is told by a mark, or by the end of the answer."""
    text = damaged(json.dumps(values, ensure_ascii=False))
    brackets = len(text) - len(text.rstrip("]}"))
    family, _ = WRITERS[name]
    notation = family.notation
    whole = notation.begin("weather") + text + notation.end.partition("\n")[0]
    # One more is missing than the call's own object; with a number at the end, it is another one.
    cut_off = min(missing, brackets + 1)
    answer = whole[: len(whole) - cut_off]
    if family.mark and data.draw(st.booleans()):
        answer += "\n</tool_call>"
    events = events_of(AnswerParsing(calls=family, tools=TOOLS), data.draw(cut(answer)), ended=True)
    ((name, arguments),) = calls_of(events)
    assert name == "weather"
    assert json.loads(arguments) == values
    assert content_of(events) == ""


@given(st.data(), st.lists(raw_arguments, min_size=1, max_size=2), st.sampled_from([0, 1, 2, 3, 4]))
def test_a_whole_call_at_the_end_of_reasoning_that_was_never_closed_counts(
    data: st.DataObject, calls: list[dict[str, Any]], case: int
) -> None:
    marked = hermes([("time", values) for values in calls])
    thoughts = data.draw(st.sampled_from(["so", "<tool_call> is what I write", "<tool_call>{}"]))
    behind, ended = [
        ("", True),
        (" \n", True),
        ("", False),
        (" I think", True),
        ("</think>", True),
    ][case]
    parsing = AnswerParsing(reasoning=ReasoningStart.POSSIBLE, calls=HERMES, tools=TOOLS)
    events = events_of(
        parsing, data.draw(cut(f"<think>\n{thoughts}\n{marked}{behind}")), ended=ended
    )
    reasoning = "".join(event.text for event in events if isinstance(event, Reasoning))
    assert content_of(events) == ""
    if case < 2:
        assert [json.loads(text) for _, text in calls_of(events)] == calls
        assert reasoning == thoughts
    else:
        assert calls_of(events) == []
        assert (
            reasoning.rstrip() == f"{thoughts}\n{marked}{behind.removesuffix('</think>')}".rstrip()
        )
