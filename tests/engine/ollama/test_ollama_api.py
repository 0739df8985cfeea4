"""Ollama's API as its official Python client uses it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ollama
import pytest
from ollama import AsyncClient

from tests.engine.agents.session import call
from tests.support.engine_core.front_half import SERVED_NAME
from tests.support.server.scripted_model import in_turn, scripted

MODEL = SERVED_NAME
ASKED = [{"role": "user", "content": "Hi!"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
THOUGHT = "<think>\nA greeting.\n</think>\n\nHello, you."
CALLED = f"<think>\nLook.\n</think>\n\n{call('get_weather', city='Paris')}"
DURATIONS = ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration")


async def streamed(parts: Any) -> list[Any]:
    return [part async for part in await parts]


def check_end(last: Any, reason: str = "stop") -> None:
    assert (last.done, last.done_reason) == (True, reason)
    assert last.prompt_eval_count > 0
    assert last.eval_count > 0
    assert all(getattr(last, name) >= 0 for name in DURATIONS)
    assert last.total_duration >= last.eval_duration


async def test_a_chat_is_answered_whole_and_in_lines(tmp_path: Path) -> None:
    async with scripted(tmp_path, lambda prompt: THOUGHT, template="qwen3") as rig:
        client = AsyncClient(rig.url)
        whole = await client.chat(MODEL, ASKED, think=True)
        assert (whole.message.thinking, whole.message.content) == ("A greeting.", "Hello, you.")
        assert (whole.model, whole.message.role) == (MODEL, "assistant")
        check_end(whole)
        parts = await streamed(client.chat(f"{MODEL}:latest", ASKED, stream=True))
        assert "".join(part.message.thinking or "" for part in parts).strip() == "A greeting."
        assert "".join(part.message.content for part in parts) == "Hello, you."
        assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
        assert len(parts) >= 3
        check_end(parts[-1])
        silent = await client.chat(MODEL, ASKED, think=False)
        assert "<think>\n\n</think>" in rig.core.prompts[-1]
        assert silent.message.content


async def test_a_tool_is_called_and_its_result_read(tmp_path: Path) -> None:
    script = in_turn(CALLED, "Sunny.", CALLED)
    async with scripted(tmp_path, script, template="qwen3") as rig:
        client = AsyncClient(rig.url)
        first = await client.chat(MODEL, ASKED, tools=[TOOL])
        (made,) = first.message.tool_calls or ()
        assert (made.function.name, made.function.arguments) == ("get_weather", {"city": "Paris"})
        result = {"role": "tool", "tool_name": "get_weather", "content": "22 degrees"}
        said = await client.chat(MODEL, [*ASKED, first.message, result], tools=[TOOL])
        assert said.message.content == "Sunny."
        assert "22 degrees" in rig.core.prompts[-1]
        assert '"city": "Paris"' in rig.core.prompts[-1]
        parts = await streamed(client.chat(MODEL, ASKED, tools=[TOOL], stream=True))
        (streamed_call,) = [c for part in parts for c in part.message.tool_calls or ()]
        assert streamed_call.function == made.function
        check_end(parts[-1])


async def test_a_prompt_goes_through_the_template_unless_it_is_raw(tmp_path: Path) -> None:
    async with scripted(tmp_path, lambda prompt: THOUGHT, template="qwen3") as rig:
        client = AsyncClient(rig.url)
        said = await client.generate(MODEL, "Hi!", system="Be kind.", stream=False)
        assert (said.response, said.thinking) == ("Hello, you.", "A greeting.")
        assert "Be kind." in rig.core.prompts[-1]
        assert "<|im_start|>user\nHi!" in rig.core.prompts[-1]
        check_end(said)
        raw = await client.generate(MODEL, "Once upon", raw=True, options={"num_predict": 5})
        assert rig.core.prompts[-1] == "Once upon"
        check_end(raw, "length")
        parts = await streamed(client.generate(MODEL, "Hi!", stream=True))
        assert "".join(part.response for part in parts) == "Hello, you."
        check_end(parts[-1])


async def test_options_are_mapped_or_refused_by_name(tmp_path: Path) -> None:
    async with scripted(tmp_path, lambda prompt: "Hello.", template="qwen3") as rig:
        client = AsyncClient(rig.url)
        options = {
            "temperature": 0.5, "top_p": 0.75, "top_k": 7, "min_p": 0.25, "seed": 3, "stop": ["x"],
            "num_predict": 4, "repeat_penalty": 1.5, "presence_penalty": 0.5, "num_ctx": 4096,
            "frequency_penalty": 0.25, "mirostat": 0, "num_thread": 8,
        }  # fmt: skip
        await client.chat(MODEL, ASKED, options=options, keep_alive="5m")
        params = rig.core.requests[-1].params
        shown = (params.temperature, params.top_p, params.top_k, params.min_p, params.seed)
        assert shown == (0.5, 0.75, 7, 0.25, 3)
        assert (params.max_tokens, params.repetition_penalty) == (4, 1.5)
        assert (params.presence_penalty, params.frequency_penalty) == (0.5, 0.25)
        for name, value in (
            ("mirostat", 2),
            ("tfs_z", 0.5),
            ("temprature", 1),
            ("penalize_newline", True),
        ):
            with pytest.raises(ollama.ResponseError, match=rf"options\.{name} is not supported"):
                await client.chat(MODEL, ASKED, options={name: value})
        for fields, words in (
            ({"options": {"temperature": "hot"}}, "temperature"),
            ({"options": {"num_predict": -3}}, "n_predict"),
            ({"logprobs": True}, "logprobs is not supported"),
            ({"messages": []}, "messages"),
            ({"messages": [{"role": "x", "content": "y"}]}, "role"),
            ({"messages": [{**ASKED[0], "images": [1]}]}, r"messages\[0\]\.images"),
            ({"messages": [{**ASKED[0], "tool_calls": "a"}]}, r"messages\[0\]\.tool_calls"),
            ({"format": "xml"}, "format"),
        ):
            answer = await rig.post("/api/chat", **{"model": MODEL, "messages": ASKED, **fields})
            assert answer.status_code == 400
            assert set(answer.json()) == {"error"}
            with pytest.raises(ollama.ResponseError, match=words):
                raise ollama.ResponseError(answer.text, 400)
        kept = await rig.post("/api/chat", model=MODEL, messages=ASKED, keep_alive=0, stream=False)
        assert kept.headers["x-ignored-fields"] == "keep_alive"
        lines = await rig.post("/api/chat", model=MODEL, messages=ASKED)  # streams by default
        assert lines.headers["content-type"] == "application/x-ndjson"
        assert all(json.loads(line)["model"] == MODEL for line in lines.text.splitlines())
        for field in ("suffix", "template"):
            with pytest.raises(ollama.ResponseError, match=f"{field} is not supported"):
                await client.generate(MODEL, "a", **{field: "b"})


async def test_a_format_is_the_grammar_of_the_answer(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
    async with scripted(tmp_path, lambda prompt: '{"age": 36}', template="qwen3") as rig:
        client = AsyncClient(rig.url)
        for form in (schema, "json"):
            said = await client.chat(MODEL, ASKED, format=form)  # type: ignore[arg-type]
            assert json.loads(said.message.content or "") == {"age": 36}
            assert rig.core.requests[-1].params.structured_outputs is not None
        await client.chat(MODEL, ASKED, format="")
        assert rig.core.requests[-1].params.structured_outputs is None


async def test_the_model_is_listed_and_described(tmp_path: Path) -> None:
    async with scripted(tmp_path, lambda prompt: "Hello.", template="qwen3") as rig:
        client = AsyncClient(rig.url)
        (model,) = (await client.list()).models
        assert model.model == MODEL
        assert model.details is not None
        assert model.details.family == "Qwen3ForCausalLM"
        shown = await client.show(MODEL)
        assert {"completion", "tools", "thinking"} <= set(shown.capabilities or ())
        assert shown.modelinfo is not None
        assert shown.modelinfo["Qwen3ForCausalLM.context_length"] > 1000
        assert (await rig.client.get("/api/version")).json()["version"].count(".") == 2
        with pytest.raises(ollama.ResponseError, match="is not served here"):
            await client.show("other")
        with pytest.raises(ollama.ResponseError, match="is not served here") as caught:
            await client.chat("other", ASKED)
        assert caught.value.status_code == 404
        (loaded,) = (await client.ps()).models
        assert (loaded.model, loaded.size_vram) == (MODEL, loaded.size)
        with pytest.raises(ollama.ResponseError, match="embed"):
            await client.embed(MODEL, "a")
        for body in (b"", b"[]", b'{"model": 7}', b'{"model": "\xff"}', b'{"a": ' + b"[" * 5000):
            refused = await rig.client.post("/api/show", content=body)
            assert refused.status_code == 400, refused.text
