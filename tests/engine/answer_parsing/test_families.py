"""What a chat template tells of its family, and what a prompt's end tells of reasoning."""

from __future__ import annotations

from pathlib import Path

import pytest

from atom.answer_parsing import AnswerFormats, AnswerParsing, Content, Reasoning, resolve_formats
from atom.answer_parsing.reasoning import ReasoningStart, reasoning_start
from tests.engine.answer_parsing.pieces import events_of

TEMPLATES = Path(__file__).parents[1] / "unit" / "chat_templates"
QWEN3 = (TEMPLATES / "qwen3_like.jinja").read_text()
LLAMA3 = (TEMPLATES / "llama3_like.jinja").read_text()


def names(formats: AnswerFormats) -> tuple[str | None, str | None]:
    calls, reasoning = formats.calls, formats.reasoning
    return calls and calls.name, reasoning and reasoning.name


@pytest.mark.parametrize(
    ("template", "found"),
    [
        (QWEN3, ("hermes", "qwen3")),
        (LLAMA3, ("llama3_json", None)),
        ("{{ messages }}", (None, None)),
        (None, (None, None)),
        # Calls in another notation between the same marks: not what we parse.
        ('<tool_call>\n<function="arguments"', (None, None)),
        ("{{ '</think>' }}", (None, "qwen3")),
    ],
)
def test_a_template_tells_its_family(
    template: str | None, found: tuple[str | None, str | None]
) -> None:
    assert names(resolve_formats("auto", "auto", template)) == found


def test_a_name_wins_over_the_template() -> None:
    assert names(resolve_formats("none", "none", QWEN3)) == (None, None)
    assert names(resolve_formats("llama3_json", "deepseek_r1", QWEN3)) == (
        "llama3_json",
        "deepseek_r1",
    )


@pytest.mark.parametrize(
    ("prompt", "always", "start"),
    [
        ("<|im_start|>assistant\n", False, ReasoningStart.POSSIBLE),
        ("<|im_start|>assistant\n", True, ReasoningStart.OPEN),
        ("<|im_start|>assistant\n<think>\n", False, ReasoningStart.OPEN),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", True, ReasoningStart.OVER),
    ],
)
def test_a_prompts_end_tells_where_the_answer_begins(
    prompt: str, always: bool, start: ReasoningStart
) -> None:
    assert reasoning_start(prompt, always=always) is start


@pytest.mark.parametrize(
    ("start", "answer", "expected"),
    [
        (ReasoningStart.OPEN, "hm\n</think>\n\nYes", [Reasoning("hm"), Content("Yes")]),
        (ReasoningStart.OPEN, "<think>hm</think>Yes", [Reasoning("hm"), Content("Yes")]),
        (ReasoningStart.OPEN, "\nhm and", [Reasoning("hm and")]),
        (ReasoningStart.POSSIBLE, "<think>\nhm </th", [Reasoning("hm </th")]),
        (ReasoningStart.POSSIBLE, "<think>\n\n</think>\n\nYes", [Content("Yes")]),
        (ReasoningStart.POSSIBLE, "Yes <think>", [Content("Yes <think>")]),
        (ReasoningStart.POSSIBLE, "<th", [Content("<th")]),
        (ReasoningStart.OVER, "\n<think>a</think>", [Content("\n<think>a</think>")]),
    ],
)
def test_reasoning(start: ReasoningStart, answer: str, expected: list[object]) -> None:
    assert events_of(AnswerParsing(reasoning=start), [answer]) == expected
