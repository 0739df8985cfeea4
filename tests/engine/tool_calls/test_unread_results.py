"""Pictures and documents in a conversation: words where a tool gave them back, since the client
cannot take them out of its history; a refusal by name where the user sends them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from atom.entrypoints.request_fields.unread_parts import UNREAD_TYPES, words_for
from tests.support.server.scripted_model import ScriptedRig, in_turn, scripted

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
CHECKED = {"type": "text", "text": "Look at this."}


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[ScriptedRig]:
    async with scripted(tmp_path, in_turn(otherwise="Yes.")) as rig:
        yield rig


def with_result(path: str, parts: list[Any]) -> dict[str, Any]:
    """A conversation in which a tool gave these parts back."""
    if path == CHAT:
        call = {"id": "c1", "type": "function", "function": {"name": "read", "arguments": "{}"}}
        called = {"role": "assistant", "content": None, "tool_calls": [call]}
        result = {"role": "tool", "tool_call_id": "c1", "content": parts}
        return {"messages": [{"role": "user", "content": "Go."}, called, result]}
    if path == MESSAGES:
        use = {"type": "tool_use", "id": "c1", "name": "read", "input": {}}
        given = {"type": "tool_result", "tool_use_id": "c1", "content": parts}
        turns = [("user", "Go."), ("assistant", [use]), ("user", [given])]
        messages = [{"role": role, "content": content} for role, content in turns]
        return {"max_tokens": 50, "messages": messages}
    items = [
        {"type": "message", "role": "user", "content": "Go."},
        {"type": "function_call", "call_id": "c1", "name": "read", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": parts},
    ]
    return {"input": items}


def of_user(path: str, parts: list[Any]) -> dict[str, Any]:
    said = [{"role": "user", "content": parts}]
    if path == RESPONSES:
        return {"input": said}
    return {"messages": said, **({"max_tokens": 50} if path == MESSAGES else {})}


@pytest.mark.sampled(10)
@pytest.mark.parametrize("kind", UNREAD_TYPES)
@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
async def test_what_a_tool_gave_back_is_told_in_words(
    rig: ScriptedRig, path: str, kind: str
) -> None:
    part = {"type": kind, "source": {"type": "base64", "data": "x"}, kind: {"url": "data:x"}}
    answer = await rig.post(path, model="tiny", **with_result(path, [CHECKED, part, CHECKED]))
    assert answer.status_code == 200, answer.text
    prompt = rig.core.prompts[-1]
    assert f"Look at this.\n{words_for(kind)}\nLook at this." in prompt


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
async def test_what_the_user_sends_is_refused_by_name(rig: ScriptedRig, path: str) -> None:
    kind = {CHAT: "image_url", MESSAGES: "image", RESPONSES: "input_image"}[path]
    part = {"type": kind, "source": {}, kind: "x"}
    answer = await rig.post(path, model="tiny", **of_user(path, [CHECKED, part]))
    assert answer.status_code == 400, answer.text
    message = answer.json()["error"]["message"]
    assert "content[1].type" in message
    assert "text" in message
    assert not rig.core.prompts


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
async def test_other_parts_of_a_result_are_refused_by_name(rig: ScriptedRig, path: str) -> None:
    body = with_result(path, [{"type": "weights", "text": "x"}])
    answer = await rig.post(path, model="tiny", **body)
    assert answer.status_code == 400, answer.text
    assert "weights" in answer.text or "text" in answer.json()["error"]["message"]
