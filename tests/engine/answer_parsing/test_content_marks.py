"""Reasoning and content between marks of a family's own, however the answer is cut into pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atom.answer_parsing import AnswerParsing, Content, Reasoning
from atom.answer_parsing.reasoning_parser import ReasoningStart, reasoning_start
from atom.answer_parsing.tool_parsers import resolve_formats
from atom.answer_parsing.tool_parsers.table import HUNYUAN
from tests.engine.answer_parsing.pieces import calls_of, content_of, cut, events_of

HUNYUAN_ANSWER = "<think>\nhm <answer>\n</think>\n<answer>\n{}\n</answer>"
ERNIE_ANSWER = "<think>\nhm <answer>\n</think>\n\n<response>\n{}\n</response>\n"
GEMMA_ANSWER = "<|channel>thought\nhm <answer><channel|>{}"
APRIEL_ANSWER = (
    "Here are my reasoning steps:\nhm <answer>\n[BEGIN FINAL RESPONSE]\n{}\n[END FINAL RESPONSE]\n"
)
MARKED = {
    "hunyuan_a13b": HUNYUAN_ANSWER,
    "ernie45": ERNIE_ANSWER,
    "gemma4": GEMMA_ANSWER,
    "apriel": APRIEL_ANSWER,
}
texts = st.lists(
    st.sampled_from(["a", "b", " ", "<", "</", "</answe", "\n", "<answer>", "|>", "thought"]),
    min_size=1, max_size=6,
).map(lambda parts: f"x{'-'.join(parts)}x")  # fmt: skip


def parsing_of(reasoning: str, start: ReasoningStart = ReasoningStart.POSSIBLE) -> AnswerParsing:
    formats = resolve_formats("none", reasoning, None)
    assert formats.reasoning is not None
    return AnswerParsing(reasoning=start, marks=formats.reasoning.marks)


@given(st.data(), st.sampled_from([*MARKED]), texts)
def test_marks_are_neither_reasoning_nor_content(data: st.DataObject, name: str, text: str) -> None:
    pieces = data.draw(cut(MARKED[name].format(text)))
    assert events_of(parsing_of(name), pieces, ended=True) == [
        Reasoning("hm <answer>"), Content(text),
    ]  # fmt: skip


@given(st.data(), st.sampled_from([*MARKED]), texts)
def test_content_without_marks_comes_through_unchanged(
    data: st.DataObject, name: str, text: str
) -> None:
    for start in (ReasoningStart.POSSIBLE, ReasoningStart.OVER):
        pieces = data.draw(cut(text))
        assert events_of(parsing_of(name, start), pieces, ended=True) == [Content(text)]


@pytest.mark.parametrize(
    "answer",
    [
        "<answer>\nI look.\n<tool_calls>{}</tool_calls>\n</answer>",
        "<answer>\nI look.\n</answer>\n<tool_calls>{}</tool_calls>",
    ],
)
def test_calls_stand_within_the_marks_or_behind_them(answer: str) -> None:
    parsing = parsing_of("hunyuan_a13b", ReasoningStart.OVER)
    parsing = AnswerParsing(
        reasoning=parsing.reasoning, marks=parsing.marks, calls=HUNYUAN, tools={"time": None}
    )
    call = '[{"name": "time", "arguments": {}}]'
    events = events_of(parsing, answer.format(call), ended=True)
    assert calls_of(events) == [("time", "{}")]
    assert content_of(events) == "I look."


@pytest.mark.parametrize(
    ("prompt", "start"),
    [
        ("<|turn>model\n", ReasoningStart.POSSIBLE),
        ("<|turn>model\n<|channel>thought\n<channel|>", ReasoningStart.OVER),
        ("<|turn>model\n<|channel>thought\n", ReasoningStart.OPEN),
    ],
)
def test_gemmas_template_tells_where_an_answer_begins(prompt: str, start: ReasoningStart) -> None:
    marks = parsing_of("gemma4").marks
    assert marks is not None
    assert reasoning_start(prompt, always=False, marks=marks) is start
