"""Every family's calls and reasoning as clients get them, where its marks are special tokens as in
published vocabularies, and where they are plain text."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.engine.answer_parsing.written import WRITERS
from tests.engine.tool_calls.echo import echoing, special_marks, streamed, whole
from tests.engine.tool_calls.test_wire import message_in

CALLS: list[tuple[str, dict[str, Any]]] = [("weather", {"city": "Zürich </x>"}), ("time", {})]


def answer_of(name: str, text: str = "I look.\n") -> str:
    """Reasoning, a text and two calls."""
    _, write = WRITERS[name]
    if name == "openai":
        said = f"<|channel|>commentary<|message|>{text}<|end|><|start|>assistant"
        thought = "<|channel|>analysis<|message|>The city?<|end|><|start|>assistant"
        return thought + (said if text else "") + write(CALLS)
    opening, closing = ("[THINK]", "[/THINK]") if "mistral" in name else ("<think>", "</think>")
    if name == "seed_oss":
        opening, closing = "<seed:think>", "</seed:think>"
    if name == "gemma4":
        opening, closing = "<|channel>thought\n", "<channel|>"
    if name == "hunyuan_a13b":
        return f"<think>\nThe city?\n</think>\n<answer>\n{text}{write(CALLS)}\n</answer>"
    reasons = name != "llama3_json"
    return (f"{opening}The city?{closing}" if reasons else "") + text + write(CALLS)


@pytest.mark.singles
@pytest.mark.parametrize("special", [True, False], ids=["special", "text"])
@pytest.mark.parametrize("name", WRITERS)
async def test_calls_and_reasoning_come_whole_and_streamed(
    tmp_path: Path, name: str, special: bool
) -> None:
    answer = answer_of(name)
    marks = special_marks(name) if special else []
    async with echoing(tmp_path, name, marks=marks) as rig:
        # Behind a call of channels nothing is content, where alone a stop string ends an answer.
        by_length = name == "openai"
        tokens = len(await rig.engine.tokenize(answer))
        ends: dict[str, Any] = {"max_tokens": tokens} if by_length else {}
        choice = await whole(rig, answer, **ends)
        cut = await whole(rig, answer, max_tokens=choice_tokens(answer) // 2)
        made = message_in(await streamed(rig, answer, **ends))
    message = choice["message"]
    found = message["tool_calls"]
    assert [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in found] == CALLS
    assert [(called, json.loads(text)) for called, text, _ in made["tool_calls"]] == CALLS
    assert message["content"] == made["content"] == "I look."
    if name != "llama3_json":
        assert message["reasoning"] == made["reasoning"] == "The city?"
    assert choice["finish_reason"] == ("length" if by_length else "tool_calls")
    assert cut["finish_reason"] in ("length", "tool_calls")
    for ids in ([call["id"] for call in found], [call[2] for call in made["tool_calls"]]):
        if name == "kimi_k2":
            assert ids == ["functions.weather:0", "functions.time:1"]
        elif "mistral" in name:
            assert all(re.fullmatch("[a-zA-Z0-9]{9}", each) for each in ids)
        else:
            assert all(re.fullmatch("call_[0-9a-f]{24}", each) for each in ids)


def choice_tokens(answer: str) -> int:
    """About as many tokens as the byte tokenizer makes of it."""
    return len(answer.encode())


async def test_ids_that_mistrals_models_write_are_kept(tmp_path: Path) -> None:
    answer = '[TOOL_CALLS]weather[CALL_ID]a1B2c3D4e[ARGS]{"city": "Bern"}'
    async with echoing(tmp_path, "mistral", marks=special_marks("mistral")) as rig:
        (call,) = (await whole(rig, answer))["message"]["tool_calls"]
    assert call["id"] == "a1B2c3D4e"


@pytest.mark.parametrize("name", ["openai", "kimi_k2", "mistral"])
async def test_special_tokens_beside_the_marks_stay_unseen(tmp_path: Path, name: str) -> None:
    marks = [*special_marks(name), *special_marks("hermes")]
    final = "<|channel|>final<|message|>" if name == "openai" else ""
    async with echoing(tmp_path, name, marks=marks) as rig:
        message = (await whole(rig, f"{final}It is<tool_call> warm."))["message"]
        shown = await whole(rig, f"{final}It is<tool_call> warm.", skip_special_tokens=False)
    assert message["content"] == "It is warm."
    assert shown["message"]["content"] == "It is<tool_call> warm."


async def test_content_of_channels_is_read_without_tools_too(tmp_path: Path) -> None:
    answer = (
        "<|channel|>analysis<|message|>One.<|end|><|start|>assistant"
        "<|channel|>analysis<|message|>Two.<|end|><|start|>assistant"
        "<|channel|>final<|message|>Yes."
    )
    async with echoing(tmp_path, "openai", marks=special_marks("openai")) as rig:
        choice = await whole(rig, answer, tools=None)
        hidden = await whole(rig, answer, tools=None, include_reasoning=False)
        made = message_in(await streamed(rig, answer, tools=None))
    assert choice["message"]["content"] == made["content"] == "Yes."
    assert choice["message"]["reasoning"] == made["reasoning"] == "One.\nTwo."
    assert choice["finish_reason"] == "stop"
    assert hidden["message"] == {"role": "assistant", "content": "Yes.", "refusal": None}
