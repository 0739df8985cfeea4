"""The official clients of OpenAI and Anthropic send pictures to a model that names what they show:
as messages and as results of tools, whole and streamed."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio
from openai import AsyncOpenAI, BadRequestError

from tests.support.engine_core.front_half import SERVED_NAME, build_test_config
from tests.support.server.http_app import HttpRig, serve_model
from tools.demo_eyes.pictures import Scene, Square, as_data_url
from tools.demo_eyes.questions import describe

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic

MODEL = Path(__file__).parents[4] / "examples" / "models" / "atom-tiny-eyes"
SQUARES = Scene((Square("red", 0), Square("blue", 4)))
SEVEN = Scene(digit=7, colour="green")
QUESTION = "What do you see?"
PICTURE_TOKENS = 16

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def rig() -> AsyncIterator[HttpRig]:
    async with serve_model(build_test_config(MODEL, num_kv_blocks=300)) as rig:
        yield rig
        await rig.assert_well()


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def openai(rig: HttpRig) -> AsyncIterator[AsyncOpenAI]:
    async with rig.openai_client() as client:
        yield client


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def anthropic(rig: HttpRig) -> AsyncIterator[AsyncAnthropic]:
    from anthropic import AsyncAnthropic

    async with AsyncAnthropic(
        base_url=rig.url, api_key="none", max_retries=0, _strict_response_validation=True
    ) as client:
        yield client


def png(scene: Scene) -> str:
    """Return the PNG of a scene in base64."""
    return as_data_url(scene).partition(",")[2]


@pytest.mark.parametrize("scene", [SQUARES, SEVEN], ids=["squares", "digit"])
async def test_a_chat_names_what_a_picture_shows(openai: AsyncOpenAI, scene: Scene) -> None:
    image = {"type": "image_url", "image_url": {"url": as_data_url(scene), "detail": "auto"}}
    asked: dict[str, Any] = {
        "model": SERVED_NAME,
        "messages": [{"role": "user", "content": [image, {"type": "text", "text": QUESTION}]}],
        "temperature": 0,
    }
    whole = await openai.chat.completions.create(**asked)
    assert whole.choices[0].message.content == describe(scene)
    assert whole.usage is not None
    details = whole.usage.prompt_tokens_details
    assert details is not None
    assert details.model_dump()["image_tokens"] == PICTURE_TOKENS
    stream = await openai.chat.completions.create(stream=True, **asked)
    pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
    assert "".join(pieces) == describe(scene)
    assert len(pieces) > 3


async def test_responses_take_pictures_in_messages_and_results(openai: AsyncOpenAI) -> None:
    url = as_data_url(SQUARES)
    text = {"type": "input_text", "text": QUESTION}
    picture = {"type": "input_image", "image_url": url, "detail": "auto"}
    items: Any = [{"role": "user", "content": [picture, text]}]
    found = await openai.responses.create(model=SERVED_NAME, input=items, temperature=0)
    assert found.output_text == describe(SQUARES)
    # As an agent that looked at a file: the picture is in the result of its call.
    call = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "c1", "output": [picture]}
    items = [{"role": "user", "content": "Look at it."}, call, result]
    async with openai.responses.stream(model=SERVED_NAME, input=items, temperature=0) as stream:
        events = [event.type async for event in stream]
        last = await stream.get_final_response()
    assert events[-1] == "response.completed"
    assert last.usage is not None
    assert last.usage.input_tokens > PICTURE_TOKENS


@pytest.mark.parametrize("streams", [False, True])
async def test_messages_take_pictures_also_in_results(
    anthropic: AsyncAnthropic, streams: bool
) -> None:
    async def ask(messages: list[Any], **more: Any) -> Any:
        asked = {"model": SERVED_NAME, "max_tokens": 60, **more}
        if not streams:
            return await anthropic.messages.create(messages=messages, **asked)
        async with anthropic.messages.stream(messages=messages, **asked) as stream:
            return await stream.get_final_message()

    source = {"type": "base64", "media_type": "image/png", "data": png(SEVEN)}
    image = {"type": "image", "source": source}
    user = {"role": "user", "content": [image, {"type": "text", "text": QUESTION}]}
    answer = await ask([user])
    assert [block.text for block in answer.content] == [describe(SEVEN)]
    count = await anthropic.messages.count_tokens(model=SERVED_NAME, messages=[user])  # type: ignore[list-item]
    assert count.input_tokens == answer.usage.input_tokens + (
        answer.usage.cache_read_input_tokens or 0
    )
    tool = {"name": "look", "input_schema": {"type": "object", "properties": {}}}
    use = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [image]}
    turns = [
        {"role": "user", "content": "Look at it."},
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [result]},
    ]
    after = await ask(turns, tools=[tool])
    assert after.usage.input_tokens + (after.usage.cache_read_input_tokens or 0) > PICTURE_TOKENS


async def test_a_broken_picture_is_the_clients_own_error(
    openai: AsyncOpenAI, anthropic: AsyncAnthropic
) -> None:
    from anthropic import BadRequestError as AnthropicBadRequestError

    broken = base64.b64encode(base64.b64decode(png(SEVEN))[:60]).decode()
    url = f"data:image/png;base64,{broken}"
    content: Any = [{"type": "image_url", "image_url": {"url": url}}]
    with pytest.raises(BadRequestError, match=r"messages\[0\]\.content\[0\]"):
        await openai.chat.completions.create(
            model=SERVED_NAME, messages=[{"role": "user", "content": content}]
        )
    source: Any = {"type": "base64", "media_type": "image/png", "data": broken}
    with pytest.raises(AnthropicBadRequestError, match="damaged"):
        await anthropic.messages.create(
            model=SERVED_NAME,
            max_tokens=5,
            messages=[{"role": "user", "content": [{"type": "image", "source": source}]}],
        )
