"""A conversation that goes on begins with what the model read and wrote, family by family: its
cached blocks serve the next turn. Where a template shows an earlier turn otherwise, it is said here
and in the guide."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from atom.entrypoints.http.json_body import to_json
from atom.entrypoints.openai.chat_parsing import answer_parsing, message_of
from atom.entrypoints.openai.chat_prompt import chat_prompt
from atom.entrypoints.openai.protocol import ChatCompletionRequest
from atom.model_engine.async_llm_engine import AsyncLLMEngine
from tests.engine.answer_parsing.written import WRITERS, Call, plain
from tests.engine.tool_calls.echo import tool
from tests.support.engine_core.front_half import build_test_config, write_model_folder
from tests.support.server.http_app import serve_app

TEMPLATES = Path(__file__).parents[1] / "unit" / "chat_templates"
USER = {"role": "user", "content": "Is it warm in Paris?"}
ANSWER = {"role": "assistant", "content": "Yes."}
TOOLS: list[Any] = [
    tool(
        "weather",
        type="object",
        properties={"city": {"type": "string"}, "days": {"type": "integer"}, "of": {}},
    ),
    tool("time", type="object", properties={}),
]
for each in TOOLS:
    each["function"]["description"] = "As it says."
CALLS: list[Call] = [("weather", {"city": "5", "days": 3, "of": {"a": [1, None]}}), ("time", {})]


@dataclass(frozen=True)
class Turn:
    """template, family: of the model. before: what it writes before its calls, as its template
    does; thinking: asked for. calls: that it writes. kept: whether the next prompt begins with all
    of that, and later: also after another question of the user's."""

    template: str
    family: str
    before: str = ""
    thinking: bool = False
    calls: int = 2
    kept: bool = True
    later: bool = True

    def __str__(self) -> str:
        return f"{self.template}-{'thinking' if self.thinking else 'plain'}"

    def answer(self) -> str:
        _, write = WRITERS[self.family]
        text = write(CALLS[: self.calls], plain)
        if self.family == "openai":  # in the order of the template
            head = "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>"
            text = text.replace(head, " to=functions.weather<|channel|>commentary json<|message|>")
        if self.template == "mistral":
            for place in range(self.calls):
                text = text.replace("[ARGS]", f"[CALL_ID]a1B2c3D4{place}[args]", 1)
            text = text.replace("[args]", "[ARGS]")
        return self.before + text


TURNS = [
    Turn("qwen3_coder", "qwen3_coder", "I look.\n\n"),
    Turn("llama3", "llama3_json", calls=1),
    Turn("llama4_pythonic", "llama4_pythonic"),
    Turn("deepseek_v3", "deepseek_v3", "I look."),
    Turn("deepseek", "deepseek_v31", "I look."),
    Turn("deepseek_v32", "deepseek_v32", "I look.\n\n"),
    Turn("deepseek_v32", "deepseek_v32", "I ask.</think>\n\n", thinking=True),
    Turn("glm", "glm45", "\nI look.\n"),
    # These leave out what was thought before the user's last question.
    Turn("glm", "glm45", "\n<think>I ask.</think>\nI look.\n", thinking=True, later=False),
    Turn("qwen3", "hermes", "<think>\nI ask.\n</think>\n\n", thinking=True, later=False),
    Turn("kimi", "kimi_k2", "<think>I ask.</think>I look.", thinking=True, later=False),
    Turn(
        "gpt_oss", "openai", "<|channel|>analysis<|message|>I ask.<|end|><|start|>assistant",
        thinking=True, calls=1,
    ),
    # This shows the tools beside the user's last question.
    Turn("mistral", "mistral", later=False),
    # This never shows what was thought.
    Turn("deepseek", "deepseek_v31", "I ask.</think>", thinking=True, kept=False, later=False),
    # Without thinking this writes an empty thought into the prompt, and no answer begins with it.
    Turn("qwen3", "hermes", "I look.\n", kept=False, later=False),
    # Its calls have ids behind their arguments, which are sent before these are known.
    Turn("mistral_v3", "mistral_list", kept=False, later=False),
]  # fmt: skip


def request_of(turn: Turn, messages: Sequence[Any]) -> ChatCompletionRequest:
    body = {
        "messages": messages,
        "tools": TOOLS,
        "chat_template_kwargs": {"enable_thinking": turn.thinking, "thinking": turn.thinking},
    }
    return ChatCompletionRequest.model_validate_json(json.dumps(body))


def message_after(engine: AsyncLLMEngine, turn: Turn, answer: str) -> dict[str, Any]:
    """The message that a server sends of what the model wrote."""
    request = request_of(turn, [USER])
    formats = engine.processor.answer_formats
    prompt = chat_prompt(engine, request).text
    parsing = answer_parsing(formats, request, request.callable_tools(), prompt)
    assert parsing is not None
    text = answer.removesuffix("<|call|>")  # an end token
    found: dict[str, Any] = json.loads(to_json(message_of(parsing, text, "stop")))
    return found


@pytest.mark.parametrize("turn", TURNS, ids=str)
async def test_the_next_prompt_begins_with_what_the_model_read_and_wrote(
    tmp_path: Path, turn: Turn
) -> None:
    folder = write_model_folder(tmp_path, context_tokens=4096)
    source = (TEMPLATES / f"{turn.template}_like.jinja").read_text()
    (folder / "chat_template.jinja").write_text(source)
    async with serve_app(build_test_config(folder)) as rig:
        engine = rig.engine
        message = message_after(engine, turn, turn.answer())
        calls = message["tool_calls"]
        assert [call["function"]["name"] for call in calls] == [
            name for name, _ in CALLS[: turn.calls]
        ]
        assert json.loads(calls[0]["function"]["arguments"]) == CALLS[0][1]
        results = [
            {"role": "tool", "tool_call_id": call["id"], "content": "20 °C"} for call in calls
        ]
        history = [USER, message, *results]
        read = chat_prompt(engine, request_of(turn, [USER])).text
        following = chat_prompt(engine, request_of(turn, history)).text
        later = chat_prompt(engine, request_of(turn, [*history, ANSWER, USER])).text
    written = read + turn.answer()
    assert following.startswith(written) is turn.kept, (written, following)
    assert later.startswith(written) is turn.later, (written, later)
    for values in CALLS[: turn.calls]:  # the path back in: nothing of a call is lost
        assert values[0] in following[len(read) :]
    assert following.count("20 °C") == turn.calls
