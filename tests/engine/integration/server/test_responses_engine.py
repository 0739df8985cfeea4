"""/v1/responses by a real engine: log-probabilities, structures, and custom tools with a regex."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from atom.config import EngineOptions, build_config
from tests.engine.responses.lifecycle import checked_response, events_in, without_ids
from tests.support.models.tiny_model import make_tiny_checkpoint
from tests.support.server.http_app import HttpRig, serve_model

PATH = "/v1/responses"
SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "size": {"enum": ["small", "large"]}},
    "required": ["ok", "size"],
    "additionalProperties": False,
}

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def rig(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HttpRig]:
    folder = make_tiny_checkpoint(tmp_path_factory.mktemp("tiny") / "qwen3")
    config = build_config(
        EngineOptions.of(
            model=str(folder), served_model_name="tiny", device="cpu", num_kv_blocks=400
        )
    )
    async with serve_model(config) as rig:
        yield rig
        await rig.assert_well()


async def answered(rig: HttpRig, **fields: Any) -> dict[str, Any]:
    """A greedy answer, the same whole and streamed."""
    body = {"input": "hello", "temperature": 0, "store": False, **fields}
    whole = await rig.post(PATH, **body)
    assert whole.status_code == 200, whole.text
    stream = await rig.post(PATH, **body, stream=True)
    streamed = checked_response(events_in(stream.text))
    response = dict(whole.json())
    for each in (response, streamed):
        each.pop("usage")  # the second reads cached blocks
    assert without_ids(streamed) == without_ids(response)
    return response


async def test_log_probabilities_spell_the_text(rig: HttpRig) -> None:
    response = await answered(
        rig, max_output_tokens=8, top_logprobs=2, include=["message.output_text.logprobs"]
    )
    (part,) = response["output"][0]["content"]
    spelled = bytes(byte for each in part["logprobs"] for byte in each["bytes"])
    assert spelled.decode(errors="replace").startswith(part["text"])
    assert all(len(each["top_logprobs"]) == 2 for each in part["logprobs"])


async def test_a_text_keeps_to_its_format(rig: HttpRig) -> None:
    form = {"type": "json_schema", "name": "size", "schema": SCHEMA, "strict": True}
    response = await answered(rig, text={"format": form}, max_output_tokens=200)
    assert set(json.loads(response["output"][0]["content"][0]["text"])) == {"ok", "size"}
    assert response["text"]["format"] == form


async def test_a_custom_tool_that_is_forced_keeps_to_its_regex(rig: HttpRig) -> None:
    form = {"type": "grammar", "syntax": "regex", "definition": "[a-c]{3}-[0-9]{2}"}
    tool = {"type": "custom", "name": "code", "format": form}
    response = await answered(
        rig,
        tools=[tool],
        tool_choice={"type": "custom", "name": "code"},
        max_output_tokens=200,
    )
    (call,) = response["output"]
    assert (call["type"], call["name"]) == ("custom_tool_call", "code")
    assert re.fullmatch(form["definition"], call["input"])


async def test_a_choice_among_tools_is_kept_to(rig: HttpRig) -> None:
    tools = [
        {"type": "function", "name": name, "parameters": {"type": "object", "properties": {}}}
        for name in ("one", "two")
    ]
    response = await answered(
        rig,
        tools=[{"type": "namespace", "name": "of", "tools": tools}],
        tool_choice={
            "type": "allowed_tools",
            "mode": "required",
            "tools": [{"type": "function", "name": "two"}],
        },
        parallel_tool_calls=False,
        max_output_tokens=200,
    )
    (call,) = response["output"]
    assert (call["name"], call["namespace"]) == ("two", "of")


async def test_a_grammar_that_cannot_be_compiled_is_refused_before_the_stream(
    rig: HttpRig,
) -> None:
    form = {"type": "json_schema", "name": "x", "schema": {"type": "string", "pattern": "("}}
    for stream in (False, True):
        response = await rig.post(PATH, input="a", text={"format": form}, stream=stream)
        error = response.json()["error"]
        assert response.status_code == 400, error
        assert error["param"] == "text"
