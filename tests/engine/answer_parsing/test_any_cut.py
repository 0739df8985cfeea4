"""However a text is cut into pieces, the events are those of the whole text."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from atom.answer_parsing import AnswerParsing, Content, Reasoning
from atom.answer_parsing.families import HERMES, LLAMA3_JSON, CallFormat
from atom.answer_parsing.reasoning import ReasoningStart
from tests.engine.answer_parsing.pieces import (
    TOOLS,
    answers,
    calls_of,
    content_of,
    cut,
    events_of,
    parsings,
)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda values: (
        st.lists(values, max_size=3) | st.dictionaries(st.text(max_size=4), values, max_size=3)
    ),
    max_leaves=6,
)
arguments = st.dictionaries(st.text(max_size=6), json_values, max_size=3)


@settings(max_examples=600)
@given(st.data(), parsings, answers)
def test_pieces_give_the_events_of_the_whole(
    data: st.DataObject, parsing: AnswerParsing, answer: str
) -> None:
    whole = events_of(parsing, [answer])
    assert events_of(parsing, data.draw(cut(answer))) == whole
    assert events_of(parsing, answer) == whole  # character by character


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


@given(
    st.data(),
    st.sampled_from([HERMES, LLAMA3_JSON]),
    st.lists(st.tuples(st.sampled_from(TOOLS), arguments), min_size=1, max_size=3),
    st.sampled_from(["", "Let me look.\n\n", "  "]),
    st.booleans(),
    st.sampled_from([None, 1]),
)
def test_calls_as_a_family_writes_them_are_found(
    data: st.DataObject,
    family: CallFormat,
    calls: list[tuple[str, Any]],
    before: str,
    escapes: bool,
    indent: int | None,
) -> None:
    written = [
        family.opening(name)
        + json.dumps(values, ensure_ascii=escapes, indent=indent)
        + family.after
        for name, values in calls
    ]
    answer = before + family.separator.join(written)
    events = events_of(AnswerParsing(calls=family, tools=TOOLS), data.draw(cut(answer)))
    found = [(name, json.loads(text)) for name, text in calls_of(events)]
    assert found == calls
    assert content_of(events) == before.rstrip()


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
