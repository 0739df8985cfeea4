"""Prompts in the notation of each family, with tools and reasoning, equal those of transformers.

The templates are written for these tests, with what the published ones use: macros, namespaces,
dates, lists of parts, JSON with separators, types of parameters, refusals.
"""

from __future__ import annotations

import datetime
import functools
from pathlib import Path
from typing import Any

import jinja2
import pytest
import transformers

from atom.chat_template import ChatTemplate, load_chat_template
from atom.errors import RequestError
from atom.tokenizer import Tokenizer
from tests.support.models.byte_tokenizer import END_OF_TEXT, write_byte_tokenizer

FOLDER = Path(__file__).parent / "chat_templates"
FAMILIES = (
    "qwen3", "llama3", "gemma", "mistral", "deepseek", "kimi", "glm", "gpt_oss", "qwen3_coder",
    "deepseek_v3", "deepseek_v32", "mistral_v3", "llama4_pythonic",
)  # fmt: skip
# What a family writes of a conversation with calls and reasoning, apart from texts.
MARKS = {
    "qwen3": ("<tool_call>", "<think>\nWhere is it?"),
    "llama3": ('"name": "weather"',),
    "mistral": (
        '[TOOL_CALLS]weather[CALL_ID]functions.weather:0[ARGS]{"city": "Zürich", "days": [',
    ),
    "deepseek": ("<｜tool▁call▁begin｜>weather<｜tool▁sep｜>{", "<｜tool▁output▁begin｜>20 °C"),
    "kimi": ("<|tool_call_begin|>functions.weather:0<|", "<think>Where is it?</think>"),
    "glm": ("<arg_key>days</arg_key>\n<arg_value>[1, 2.5]</arg_value>", "<think>Where is it?<"),
    "gpt_oss": ("to=functions.weather<|channel|>", "analysis<|message|>Where is it?<|end|>"),
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "How <warm> it is & why, in °C",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "enum": ["Zürich", "Bern"]},
                    "days": {"type": "array", "items": {"type": "number"}},
                    "unit": {"type": ["string", "null"]},
                },
                "required": ["city"],
            },
        },
    }
]
CALL = {
    "id": "functions.weather:0",
    "type": "function",
    "function": {"name": "weather", "arguments": {"city": "Zürich", "days": [1, 2.5]}},
}
ANSWER = {"role": "tool", "tool_call_id": "functions.weather:0", "content": "20 °C & <sunny>"}
ASKED = {"role": "user", "content": "Is it warm? "}
CALLED = {
    "role": "assistant",
    "content": "",
    "reasoning_content": "Where is it?",
    "tool_calls": [CALL],
}
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "question": [ASKED],
    "system": [{"role": "system", "content": "Be short.\n"}, ASKED],
    "call": [ASKED, CALLED],
    "answered call": [{"role": "system", "content": "Be short."}, ASKED, CALLED, ANSWER],
    "reasoning of turns": [
        ASKED,
        {"role": "assistant", "content": "Yes.", "reasoning_content": "20 °C\nis warm."},
        {"role": "user", "content": "And in Bern?"},
        {"role": "assistant", "content": "<think>\n18\n</think>\n\nToo.", "thinking": "18"},
    ],
    "reasoning under its other name": [
        ASKED,
        {"role": "assistant", "content": "Yes.", "reasoning": "20 °C\nis warm."},
    ],
    "two answers": [ASKED, CALLED, ANSWER, ANSWER, {"role": "assistant", "content": "Yes."}],
}


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {name: tmp_path_factory.mktemp(name) for name in FAMILIES}
    for name, folder in made.items():
        write_byte_tokenizer(folder, bos_token=END_OF_TEXT)
        source = (FOLDER / f"{name}_like.jinja").read_bytes()
        (folder / "chat_template.jinja").write_bytes(source)
    return made


@pytest.fixture
def folder(folders: dict[str, Path], family: str) -> Path:
    return folders[family]


@functools.cache
def _ours(folder: Path) -> ChatTemplate:
    found = load_chat_template(folder, Tokenizer(folder))
    assert found is not None
    return found


@functools.cache
def _theirs(folder: Path) -> transformers.PreTrainedTokenizerFast:
    return transformers.PreTrainedTokenizerFast.from_pretrained(folder)


@pytest.fixture(autouse=True)
def _one_day(monkeypatch: pytest.MonkeyPatch) -> None:
    """Midnight may pass between two renderings."""

    class Day(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> datetime.datetime:
            return cls(2026, 2, 3, 4, 5)

    monkeypatch.setattr("atom.template_sandbox.datetime.datetime", Day)
    monkeypatch.setattr("transformers.utils.chat_template_utils.datetime", Day)


def _with_nine(message: dict[str, Any]) -> dict[str, Any]:
    """A message whose ids are of the form that this family's templates insist on."""
    found = dict(message)
    if "tool_calls" in found:
        found["tool_calls"] = [{**call, "id": "functi0n0"} for call in found["tool_calls"]]
    if "tool_call_id" in found:
        found["tool_call_id"] = "functi0n0"
    return found


def rendered(render: Any) -> str:
    """The prompt, or why there is none: both sides must refuse alike."""
    try:
        return str(render())
    except jinja2.TemplateError as error:
        return f"refused: {error}"
    except RequestError as error:
        return f"refused: {error.__cause__}"


@pytest.mark.sampled(40)
@pytest.mark.pairs
@pytest.mark.parametrize("name", CONVERSATIONS)
@pytest.mark.parametrize("tools", [None, TOOLS], ids=["no-tools", "tools"])
@pytest.mark.parametrize("prompted", [True, False], ids=["prompted", "whole"])
@pytest.mark.parametrize(
    "extra", [{}, {"enable_thinking": False, "thinking": True, "reasoning_effort": "high"}], ids=len
)
def test_prompts_equal_those_of_transformers(
    folder: Path, family: str, name: str, tools: Any, prompted: bool, extra: dict[str, Any]
) -> None:
    theirs, ours = _theirs(folder), _ours(folder)
    messages = CONVERSATIONS[name]
    if family == "gemma" and CALLED in messages:
        with pytest.raises(
            RequestError, match=r"messages\[\d\]\.tool_calls: .* no place for calls"
        ):
            ours.render(messages, tools=tools)
        return
    if family == "gemma" and tools:  # which its template leaves out
        assert '"name": "weather"' in ours.render(messages, tools=tools)
        return
    if family == "mistral_v3":
        messages = [_with_nine(message) for message in messages]

    def expected() -> Any:
        return theirs.apply_chat_template(
            messages, tools=tools, tokenize=False, add_generation_prompt=prompted, **extra
        )

    def found() -> str:
        return ours.render(messages, tools=tools, add_generation_prompt=prompted, extra=extra)

    assert rendered(found) == rendered(expected)


@pytest.mark.parametrize("family", MARKS, indirect=True)
def test_calls_and_reasoning_reach_the_prompt(folder: Path, family: str) -> None:
    prompt = _ours(folder).render(CONVERSATIONS["answered call"], tools=TOOLS)
    for mark in MARKS[family]:
        assert mark in prompt


def test_reasoning_has_every_name_that_templates_know() -> None:
    source = (
        "{% for m in messages %}{{ m.thinking }}/{{ m.reasoning_content }}{{ m.content }}"
        "{% endfor %}"
    )
    for name in ("reasoning", "reasoning_content", "thinking"):
        message = {"role": "assistant", "content": "", name: "so"}
        assert ChatTemplate(source, {}).render([message]) == "so/so"
