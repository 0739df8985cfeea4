"""Pictures by Ollama's official client, to a model that names what they show."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import ollama
import pytest
import pytest_asyncio
from ollama import AsyncClient

from tests.support.engine_core.front_half import SERVED_NAME, build_test_config
from tests.support.server.http_app import HttpRig, serve_model
from tools.demo_eyes.pictures import Scene, Square, as_data_url
from tools.demo_eyes.questions import describe

MODEL = Path(__file__).parents[3] / "examples" / "models" / "atom-tiny-eyes"
SCENES = [Scene((Square("red", 0), Square("blue", 4))), Scene(digit=7, colour="green")]
QUESTION = "What do you see?"
GREEDY: dict[str, Any] = {"model": SERVED_NAME, "options": {"temperature": 0}}

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def rig() -> AsyncIterator[HttpRig]:
    async with serve_model(build_test_config(MODEL, num_kv_blocks=300)) as rig:
        yield rig
        await rig.assert_well()


def png(scene: Scene) -> bytes:
    return base64.b64decode(as_data_url(scene).partition(",")[2])


@pytest.mark.parametrize("scene", SCENES, ids=["squares", "digit"])
async def test_a_picture_is_named_by_each_address_whole_and_in_lines(
    rig: HttpRig, scene: Scene
) -> None:
    client = AsyncClient(rig.url)
    said = {"role": "user", "content": QUESTION, "images": [png(scene)]}
    chat = await client.chat(messages=[said], **GREEDY)
    parts = [part async for part in await client.chat(messages=[said], stream=True, **GREEDY)]
    prompted = await client.generate(prompt=QUESTION, images=[png(scene)], **GREEDY)
    lines = await client.generate(prompt=QUESTION, images=[png(scene)], stream=True, **GREEDY)
    pieces = [part.response async for part in lines]
    found = [
        chat.message.content,
        "".join(part.message.content or "" for part in parts),
        prompted.response,
        "".join(pieces),
    ]
    assert found == [describe(scene)] * 4
    assert min(len(parts), len(pieces)) > 3


async def test_pictures_of_several_messages_keep_their_order(rig: HttpRig) -> None:
    client = AsyncClient(rig.url)
    turns: list[dict[str, Any]] = []
    for scene in SCENES:
        turns.append({"role": "user", "content": QUESTION, "images": [png(scene)]})
        answer = (await client.chat(messages=turns[-1:], **GREEDY)).message.content
        turns.append({"role": "assistant", "content": answer})
        assert answer == describe(scene)
    whole = await client.chat(messages=turns[:-1], **GREEDY)
    alone = await client.chat(messages=turns[:1], **GREEDY)
    assert (whole.prompt_eval_count or 0) > (alone.prompt_eval_count or 0) + 16


async def test_a_broken_picture_is_refused_by_its_place(rig: HttpRig) -> None:
    client = AsyncClient(rig.url)
    cut = png(SCENES[0])[:60]
    said = {"role": "user", "content": QUESTION, "images": [cut]}
    with pytest.raises(ollama.ResponseError, match=r"messages\[0\]") as caught:
        await client.chat(messages=[said], **GREEDY)
    assert caught.value.status_code == 400
    with pytest.raises(ollama.ResponseError, match="damaged"):
        await client.generate(prompt=QUESTION, images=[cut], **GREEDY)
