"""Anthropic's own client against the server: whole, streamed, with tools there and back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.engine.answer_parsing.written import WRITERS, plain
from tests.support.server.scripted_model import ScriptedRig, in_turn, scripted

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic

CALL = WRITERS["hermes"][1]([("weather", {"city": "Paris"})], plain)
TOOLS: list[Any] = [
    {
        "name": "weather",
        "description": "The weather of a city.",
        "input_schema": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    }
]
ASKED: dict[str, Any] = {"model": "tiny", "max_tokens": 500, "tools": TOOLS}
USER: Any = {"role": "user", "content": "Is it warm in Paris? " * 20}
SCRIPT = (f"<think>\nThe city?\n</think>\n\nI look.\n{CALL}", "It is warm.")


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[ScriptedRig]:
    async with scripted(tmp_path, in_turn(*SCRIPT)) as rig:
        yield rig


@pytest.fixture
async def client(rig: ScriptedRig) -> AsyncIterator[AsyncAnthropic]:
    from anthropic import AsyncAnthropic

    async with AsyncAnthropic(
        base_url=rig.url, api_key="none", max_retries=0, _strict_response_validation=True
    ) as client:
        yield client


@pytest.mark.parametrize("streams", [False, True])
async def test_a_tool_is_called_and_its_result_answered(
    rig: ScriptedRig, client: AsyncAnthropic, streams: bool
) -> None:
    from anthropic.types import ToolUseBlock

    async def ask(messages: list[Any]) -> Any:
        if not streams:
            return await client.messages.create(messages=messages, **ASKED)
        async with client.messages.stream(messages=messages, **ASKED) as stream:
            return await stream.get_final_message()

    first = await ask([USER])
    assert [block.type for block in first.content] == ["thinking", "text", "tool_use"]
    thinking, text, call = first.content
    assert (thinking.thinking, text.text) == ("The city?", "I look.")
    assert thinking.signature
    assert isinstance(call, ToolUseBlock)
    assert (call.name, call.input) == ("weather", {"city": "Paris"})
    assert call.id.startswith("toolu_")
    assert first.id.startswith("msg_")
    assert (first.stop_reason, first.stop_sequence) == ("tool_use", None)
    details = first.usage.output_tokens_details
    assert details is not None
    assert 0 < details.thinking_tokens < first.usage.output_tokens

    result = {"type": "tool_result", "tool_use_id": call.id, "content": "20 °C"}
    second = await ask([USER, first.to_param(), {"role": "user", "content": [result]}])
    assert [block.type for block in second.content] == ["text"]
    assert second.content[0].text == "It is warm."
    assert second.stop_reason == "end_turn"
    usage = second.usage
    assert usage.cache_creation_input_tokens == 0
    total = usage.input_tokens + (usage.cache_read_input_tokens or 0)
    assert total == len(rig.core.requests[1].prompt_token_ids)
    # The second prompt begins with the first and its answer, to the last whole block.
    assert usage.cache_read_input_tokens == rig.core.cached_shares[1] * total > 0.7 * total
    assert "<tool_response>\n20 °C" in rig.core.prompts[1]


async def test_tokens_are_counted_as_they_are_read(
    rig: ScriptedRig, client: AsyncAnthropic
) -> None:
    asked = {"model": "tiny", "system": "Be short.", "messages": [USER], "tools": TOOLS}
    counted = await client.messages.count_tokens(**asked)
    answer = await client.messages.create(max_tokens=5, **asked)
    assert counted.input_tokens == answer.usage.input_tokens
    assert answer.stop_reason == "max_tokens"
    assert answer.usage.output_tokens == 5


async def test_models_are_listed_in_its_shape(client: AsyncAnthropic) -> None:
    page = await client.models.list()
    assert [model.id for model in page.data] == ["tiny"]
    assert not page.has_more
    one = await client.models.retrieve("tiny")
    assert (one.display_name, one.type) == ("tiny", "model")


async def test_errors_are_its_own_exceptions(client: AsyncAnthropic, rig: ScriptedRig) -> None:
    import anthropic

    with pytest.raises(anthropic.NotFoundError) as unknown:
        await client.messages.create(model="other", max_tokens=5, messages=[USER])
    body: Any = unknown.value.body
    assert body["error"]["type"] == "not_found_error"
    assert body["request_id"] == unknown.value.request_id
    image: Any = {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}
    with pytest.raises(anthropic.BadRequestError, match="'image' blocks are not taken here"):
        await client.messages.create(
            model="tiny", max_tokens=5, messages=[{"role": "user", "content": [image]}]
        )
