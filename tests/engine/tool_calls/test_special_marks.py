"""Forced and strict calls from a real engine with random weights, in the notation of families whose
marks are special tokens: what is enforced are these tokens, and a budget ends reasoning by them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import pytest_asyncio
from tokenizers import Tokenizer

from atom.config import EngineOptions, build_config
from tests.engine.tool_calls.echo import CHAT, special_marks, telling, tool
from tests.support.models.byte_tokenizer import CHAT_TEMPLATE
from tests.support.models.tiny_model import make_tiny_checkpoint
from tests.support.server.http_app import HttpRig, serve_model

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": ["Paris", "Rome"]},
        "days": {"type": "integer", "minimum": 0, "maximum": 9},
        "note": {"type": "string", "maxLength": 4},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
FAMILIES = ("kimi_k2", "deepseek_v3", "deepseek_v32", "mistral", "openai")
# The prompt's end: behind reasoning, or within the message that is reasoning.
STARTS = {
    "openai": "<|start|>assistant<|channel|>analysis<|message|>",
    "mistral": "[THINK]no[/THINK]",
}

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module", params=FAMILIES)
async def rig(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[str, HttpRig, Tokenizer]]:
    name = str(request.param)
    folder = tmp_path_factory.mktemp("tiny") / "model"
    make_tiny_checkpoint(folder, extra={"vocab_size": 320})
    tokenizer = add_marks(folder, name)
    start = STARTS.get(name, "<think>\n\n</think>\n\n")
    (folder / "chat_template.jinja").write_text(telling(name) + CHAT_TEMPLATE + start)
    options: dict[str, Any] = {"served_model_name": "tiny", "device": "cpu", "num_kv_blocks": 400}
    async with serve_model(build_config(EngineOptions.of(model=str(folder), **options))) as rig:
        yield name, rig, tokenizer
        await rig.assert_well()


def add_marks(folder: Path, name: str) -> Tokenizer:
    file = str(folder / "tokenizer.json")
    tokenizer = Tokenizer.from_file(file)
    tokenizer.add_tokens(special_marks(name))
    tokenizer.save(file)
    return tokenizer


async def ask(rig: HttpRig, **fields: Any) -> dict[str, Any]:
    strict = tool("weather", **WEATHER)
    strict["function"]["strict"] = True
    body = {
        "messages": [{"role": "user", "content": "warm?"}], "tools": [strict], "max_tokens": 300,
        "temperature": 1.0, "return_token_ids": True, "seed": 3, "thinking_token_budget": 6,
    }  # fmt: skip
    response = await rig.post(CHAT, **{**body, **fields})
    assert response.status_code == 200, response.text
    return dict(response.json())


@pytest.mark.sampled(3)
async def test_a_forced_call_is_written_with_the_marks_tokens(
    rig: tuple[str, HttpRig, Tokenizer],
) -> None:
    name, server, tokenizer = rig
    fields = {"tool_choice": "required", "parallel_tool_calls": False, "n": 3}
    answer = await ask(server, **fields)
    for choice in answer["choices"]:
        (call,) = choice["message"]["tool_calls"]
        assert choice["finish_reason"] == "tool_calls"
        assert choice["message"]["content"] is None
        jsonschema.validate(json.loads(call["function"]["arguments"]), WEATHER)
        special = {tokenizer.token_to_id(mark.content) for mark in special_marks(name)}
        assert special & set(choice["token_ids"])
        text = tokenizer.decode(choice["token_ids"], skip_special_tokens=True)
        assert not any(mark.content in text for mark in special_marks(name))


async def test_a_call_that_need_not_come_fits_when_it_does(
    rig: tuple[str, HttpRig, Tokenizer],
) -> None:
    """The mark of a call is made likely; elsewhere the text is free."""
    name, server, tokenizer = rig
    if name in ("deepseek_v32", "openai"):  # begin a call with more than one token
        return
    mark = special_marks(name)[0].content
    bias = {str(tokenizer.token_to_id(mark)): 100}
    answer = await ask(server, n=3, logit_bias=bias, parallel_tool_calls=False, max_tokens=200)
    called = 0
    for choice in answer["choices"]:
        for call in choice["message"].get("tool_calls", ()):
            called += 1
            if choice["finish_reason"] == "tool_calls":
                jsonschema.validate(json.loads(call["function"]["arguments"]), WEATHER)
    assert called == 3


async def test_a_budget_ends_reasoning_in_channels_by_their_tokens(
    rig: tuple[str, HttpRig, Tokenizer],
) -> None:
    name, server, tokenizer = rig
    if name != "openai":
        return
    final = "<|end|><|start|>assistant<|channel|>final<|message|>"
    mark = tokenizer.encode(final, add_special_tokens=False).ids
    bare = await ask(server, tools=None, max_tokens=40, n=2)
    for choice in bare["choices"]:
        assert choice["token_ids"][6 : 6 + len(mark)] == mark
        assert choice["message"]["content"]
        assert "final" not in choice["message"]["content"][:9]
    # The thought and the mark that ends it.
    assert bare["usage"]["completion_tokens_details"]["reasoning_tokens"] == 2 * 7
    structured = await ask(
        server, tools=None, response_format={"type": "json_object"}, max_tokens=250,
        temperature=0.3, logit_bias={str(tokenizer.token_to_id("}")): 30},
    )  # fmt: skip
    (choice,) = structured["choices"]
    assert choice["token_ids"][6 : 6 + len(mark)] == mark
    if choice["finish_reason"] == "stop":
        json.loads(choice["message"]["content"])
    unbound = await ask(server, tools=None, max_tokens=30, thinking_token_budget=-1)
    assert unbound["usage"]["completion_tokens_details"]["reasoning_tokens"] >= 6
