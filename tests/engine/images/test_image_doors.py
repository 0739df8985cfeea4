"""Images in every API reach the engine at their places, or are refused by their part."""

from __future__ import annotations

import asyncio
import base64
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from atom.entrypoints.http.body_budget import MAX_BODY_BYTES
from atom.model_engine.request import Request
from tests.support.engine_core.front_half import build_test_config, write_model_folder
from tests.support.hostile_pictures import bombs, damaged, others
from tests.support.pictures import file_of
from tests.support.server.http_app import AppRig, serve_app
from tests.support.server.seeing_model import (
    BREAK,
    END,
    IMAGE,
    data_url,
    image_part,
    picture,
    write_seeing_model,
)

RED, BLUE = picture(3, 2), picture(2, 1, "blue")
RED_TEXT, BLUE_TEXT = f"{IMAGE * 3}{BREAK}{IMAGE * 3}{END}", f"{IMAGE * 2}{END}"
CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[AppRig]:
    folder = write_seeing_model(tmp_path / "seeing")
    async with serve_app(build_test_config(folder)) as made:
        yield made


@pytest.fixture(params=[True, False], ids=["template-shows-results", "template-does-not"])
async def any_rig(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[AppRig]:
    folder = write_seeing_model(tmp_path / "seeing", tool_images=request.param)
    async with serve_app(build_test_config(folder)) as made:
        yield made


@pytest.fixture
async def text_rig(tmp_path: Path) -> AsyncIterator[AppRig]:
    """Serve the same model as its text part."""
    folder = write_seeing_model(tmp_path / "seeing")
    async with serve_app(build_test_config(folder, language_model_only=True)) as made:
        yield made


def _text(rig: AppRig, request: Request) -> str:
    tokenizer = rig.engine.processor.tokenizer
    assert tokenizer is not None
    return tokenizer.decode(request.prompt_token_ids, skip_special_tokens=False)


def _check_places(rig: AppRig, request: Request, *tokens: int) -> None:
    """Check that each image fills the positions of its tokens, in order."""
    tokenizer = rig.engine.processor.tokenizer
    assert tokenizer is not None
    image = tokenizer.token_id(IMAGE)
    filled = [
        placed.offset + int(at)
        for placed in request.images
        for at in np.flatnonzero(np.frombuffer(placed.filled, dtype=np.uint8))
    ]
    assert filled == [at for at, each in enumerate(request.prompt_token_ids) if each == image]
    assert [placed.num_tokens for placed in request.images] == list(tokens)


def _user(*parts: Any) -> dict[str, Any]:
    shown = [{"type": "text", "text": each} if isinstance(each, str) else each for each in parts]
    return {"role": "user", "content": shown}


# ---- chat ------------------------------------------------------------------------------------


async def test_a_chat_shows_its_images_to_the_engine(rig: AppRig) -> None:
    words = f"What is {IMAGE}, "
    messages = [_user(words, image_part(RED), " or ", image_part(BLUE, detail="high"), "?")]
    answer = await rig.post(CHAT, messages=messages, max_tokens=1)
    assert answer.status_code == 200, answer.text
    (request,) = rig.core.added
    assert _text(rig, request) == (
        f"<|im_start|>user\n{words}{RED_TEXT} or {BLUE_TEXT}?<|im_end|>\n<|im_start|>assistant\n"
    )
    _check_places(rig, request, 6, 2)
    usage = answer.json()["usage"]
    assert usage["prompt_tokens"] == len(request.prompt_token_ids)
    assert usage["prompt_tokens_details"]["image_tokens"] == 8


async def test_every_answer_of_a_chat_has_the_images(rig: AppRig) -> None:
    answer = await rig.post(CHAT, messages=[_user(image_part(RED))], max_tokens=1, n=2)
    assert [len(request.images) for request in rig.core.added] == [1, 1]
    assert answer.json()["usage"]["prompt_tokens_details"]["image_tokens"] == 6


async def test_a_stream_counts_image_tokens(rig: AppRig) -> None:
    events = await rig.events(
        CHAT,
        messages=[_user(image_part(BLUE))],
        max_tokens=2,
        stream_options={"include_usage": True},
    )
    assert events[-2]["usage"]["prompt_tokens_details"]["image_tokens"] == 2


async def test_low_detail_reduces_a_picture(rig: AppRig) -> None:
    large = picture(28, 28)
    for detail in ("low", "auto"):
        part = image_part(large, detail=detail)
        await rig.post(CHAT, messages=[_user(part)], max_tokens=1)
    low, auto = rig.core.added
    _check_places(rig, low, 19 * 19)
    _check_places(rig, auto, 28 * 28)


async def test_a_chat_without_images_tells_of_none(rig: AppRig) -> None:
    answer = await rig.chat("hello", max_tokens=1)
    assert answer.json()["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    assert rig.core.added[0].images == []


async def test_words_of_a_chat_never_become_an_image(rig: AppRig) -> None:
    await rig.chat(f"What is {IMAGE}?", max_tokens=1)
    (request,) = rig.core.added
    assert f"What is {IMAGE}?" in _text(rig, request)
    _check_places(rig, request)


async def test_an_image_that_came_before_is_not_decoded_again(rig: AppRig) -> None:
    for _ in range(2):
        await rig.post(CHAT, messages=[_user(image_part(RED))], max_tokens=1)
    first, second = rig.core.added
    assert first.images[0].digest == second.images[0].digest
    images = rig.engine.images
    assert images is not None
    images.close()  # nothing can be decoded from here on
    await rig.post(CHAT, messages=[_user(image_part(RED))], max_tokens=1)
    assert len(rig.core.added) == 3


# ---- results of tools ------------------------------------------------------------------------


async def test_a_result_of_a_tool_shows_its_image(any_rig: AppRig) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    result = [{"type": "text", "text": "It is:"}, image_part(RED)]
    messages = [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": "I look.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": result},
        {"role": "user", "content": "And?"},
    ]
    answer = await any_rig.post(CHAT, messages=messages, max_tokens=1)
    assert answer.status_code == 200, answer.text
    (request,) = any_rig.core.added
    _check_places(any_rig, request, 6)
    text = _text(any_rig, request)
    assert text.index("It is:") < text.index(IMAGE) < text.index("And?")


async def test_results_of_messages_show_their_images(any_rig: AppRig) -> None:
    source = {
        "type": "base64",
        "media_type": "image/png",
        "data": base64.b64encode(BLUE).decode(),
    }
    messages = [
        {"role": "user", "content": "Look."},
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "toolu_1",
                    "content": [
                        {"type": "text", "text": "Here."},
                        {"type": "image", "source": source},
                    ],
                },
                {"type": "text", "text": "And?"},
                {"type": "image", "source": {"type": "url", "url": data_url(RED)}},
            ],
        },
    ]
    body = {"model": "tiny", "messages": messages}
    answer = await any_rig.post(MESSAGES, max_tokens=1, **body)
    assert answer.status_code == 200, answer.text
    (request,) = any_rig.core.added
    _check_places(any_rig, request, 2, 6)
    counted = await any_rig.post(f"{MESSAGES}/count_tokens", **body)
    assert counted.json()["input_tokens"] == len(request.prompt_token_ids)


async def test_responses_show_images_of_messages_and_results(any_rig: AppRig) -> None:
    items = [
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "Look at"},
                {"type": "input_image", "image_url": data_url(RED), "detail": "auto"},
            ],
        },
        {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": "{}"},
        {
            "type": "function_call_output",
            "call_id": "call_1",
            "output": [{"type": "input_image", "image_url": data_url(BLUE)}],
        },
    ]
    answer = await any_rig.post(RESPONSES, input=items, max_output_tokens=1, store=False)
    assert answer.status_code == 200, answer.text
    (request,) = any_rig.core.added
    _check_places(any_rig, request, 6, 2)
    counted = await any_rig.post(f"{RESPONSES}/input_tokens", input=items)
    assert counted.json()["input_tokens"] == len(request.prompt_token_ids)


# ---- counting --------------------------------------------------------------------------------


async def test_tokens_are_counted_as_a_chat_has_them(rig: AppRig) -> None:
    messages = [_user("This: ", image_part(RED))]
    await rig.post(CHAT, messages=messages, max_tokens=1)
    (request,) = rig.core.added
    counted = await rig.post("/tokenize", messages=messages)
    assert counted.json()["tokens"] == request.prompt_token_ids
    rendered = await rig.post(f"{CHAT}/render", messages=messages)
    assert rendered.json()["token_ids"] == request.prompt_token_ids
    assert f"This: {IMAGE}<|im_end|>" in rendered.json()["text"]


# ---- refusals --------------------------------------------------------------------------------

_BAD = {
    "not-base64": ({"url": "data:image/png;base64,*"}, "base64 is not valid"),
    "svg": ({"url": data_url(b"<svg/>")}, "an SVG drawing"),
    "cut": ({"url": data_url(RED[:-40])}, "damaged or incomplete"),
    "unknown-kind": ({"url": data_url(RED, "image/tiff")}, "of 'image/tiff'"),
    "site": ({"url": "https://example.com/a.png"}, "--allowed-media-domains"),
    "file": ({"url": "file:///etc/passwd"}, "--allowed-local-media-path"),
}


async def test_a_bad_image_is_refused_by_its_part(rig: AppRig) -> None:
    for sent, reason in _BAD.values():
        await _check_refused(rig, sent, reason)
    assert rig.core.added == []


async def test_half_a_character_in_a_data_url_is_refused(rig: AppRig) -> None:
    url = r"data:image/png;base64,\ud800"
    part = f'{{"type": "image_url", "image_url": {{"url": "{url}"}}}}'
    body = f'{{"messages": [{{"role": "user", "content": [{part}]}}], "max_tokens": 1}}'
    headers = {"content-type": "application/json"}
    refused = await rig.client.post(CHAT, content=body, headers=headers)
    assert refused.status_code == 400, refused.text
    assert rig.core.added == []


async def _check_refused(rig: AppRig, sent: dict[str, str], reason: str) -> None:
    messages = [
        {"role": "user", "content": "hi"},
        _user("a", {"type": "image_url", "image_url": sent}),
    ]
    refused = await rig.post(CHAT, messages=messages, max_tokens=1)
    assert refused.status_code == 400, refused.text
    error = refused.json()["error"]
    assert (error["code"], error["param"]) == ("invalid_image", "messages")
    assert error["message"].startswith("messages[1].content[1]: ")
    assert reason in error["message"]


async def test_a_part_of_another_kind_or_shape_is_refused(rig: AppRig) -> None:
    for part, words in (
        ({"type": "image_url"}, "messages[0].content[0].image_url.url: is required"),
        ({"type": "image_url", "image_url": {"url": 3}}, "image_url.url: is required"),
        (image_part(RED, detail="most"), "image_url.detail: must be auto, low or high"),
        ({"type": "video_url", "video_url": {"url": "x"}}, "'video_url'; this server takes text"),
        ({"type": "input_audio", "input_audio": {}}, "'input_audio'; this server takes text"),
        ({"type": "file", "file": {}}, "'file'; this server takes text"),
    ):
        refused = await rig.post(CHAT, messages=[_user(part)], max_tokens=1)
        assert refused.status_code == 400, refused.text
        assert words in refused.json()["error"]["message"]


async def test_bad_images_of_other_apis_are_refused_by_their_part(rig: AppRig) -> None:
    image = {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}
    refused = await rig.post(
        MESSAGES, model="tiny", max_tokens=1, messages=[{"role": "user", "content": [image]}]
    )
    assert refused.status_code == 400
    assert refused.json()["error"]["message"].startswith("messages[0].content[0]: ")
    for source, words in (
        ({"type": "file", "file_id": "f"}, "source.type: must be base64 or url"),
        ({"type": "base64", "data": "aa"}, "source.media_type: is required"),
        (None, "source.type: must be base64 or url"),
    ):
        content = [{"type": "image", "source": source}]
        refused = await rig.post(
            MESSAGES, model="tiny", max_tokens=1, messages=[{"role": "user", "content": content}]
        )
        assert words in refused.json()["error"]["message"]
    for part, words in (
        ({"type": "input_image", "image_url": "data:,"}, "input[1].content[0]: "),
        ({"type": "input_image", "file_id": "f"}, "file_id: this server stores no files"),
        ({"type": "input_image"}, "image_url: is required"),
    ):
        items = [{"role": "user", "content": "hi"}, {"role": "user", "content": [part]}]
        refused = await rig.post(RESPONSES, input=items, max_output_tokens=1, store=False)
        assert refused.status_code == 400
        assert words in refused.json()["error"]["message"]
        assert refused.json()["error"]["param"] == "input"


async def test_more_images_than_the_limit_are_refused(rig: AppRig) -> None:
    refused = await rig.post(CHAT, messages=[_user(*[image_part(BLUE)] * 9)], max_tokens=1)
    assert refused.status_code == 400
    assert "9 images are more than the 8" in refused.json()["error"]["message"]


async def test_an_image_of_the_system_or_the_assistant_is_refused(rig: AppRig) -> None:
    for role in ("system", "assistant"):
        messages = [{"role": role, "content": [image_part(BLUE)]}, _user("hi")]
        refused = await rig.post(CHAT, messages=messages, max_tokens=1)
        assert refused.status_code == 400
        assert f"no place in a message of role {role}" in refused.json()["error"]["message"]


# ---- models of text --------------------------------------------------------------------------


async def test_a_model_of_text_refuses_images_as_before(text_rig: AppRig, tmp_path: Path) -> None:
    """As a checkpoint without an encoder does, word by word."""
    folder = write_model_folder(tmp_path / "text", context_tokens=1024)
    image = {"type": "image", "source": {"type": "url", "url": data_url(RED)}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [image]}
    call = {"type": "tool_use", "id": "t", "name": "look", "input": {}}
    bodies: list[tuple[str, dict[str, Any]]] = [
        (CHAT, {"messages": [_user("a", image_part(RED))], "max_tokens": 1}),
        (CHAT, {"messages": [_user({"type": "video_url", "video_url": {}})], "max_tokens": 1}),
        (
            MESSAGES,
            {
                "model": "tiny",
                "max_tokens": 1,
                "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, image]}],
            },
        ),
        (
            RESPONSES,
            {
                "input": [
                    {
                        "role": "user",
                        "content": [{"type": "input_image", "image_url": data_url(RED)}],
                    }
                ],
                "store": False,
            },
        ),
    ]
    told = {
        "model": "tiny",
        "max_tokens": 1,
        "messages": [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": [result]},
        ],
    }
    async with serve_app(build_test_config(folder)) as plain:
        for path, body in bodies:
            refused, expected = await text_rig.post(path, **body), await plain.post(path, **body)
            assert refused.status_code == expected.status_code == 400
            assert refused.json()["error"] == expected.json()["error"]
            assert "text only" in refused.text
    answer = await text_rig.post(MESSAGES, **told)
    assert answer.status_code == 200, answer.text
    (request,) = text_rig.core.added
    assert "[image left out: this model reads text]" in _text(text_rig, request)
    assert request.images == []


async def test_hostile_files_are_answered_and_hold_up_no_one(rig: AppRig) -> None:
    """Bombs, files of other kinds and damaged ones, many at once: answers or refusals alone."""
    files = [*bombs(), *others(), *(damaged(random.Random(seed)) for seed in range(12))]

    async def ask(name: str, file: bytes) -> None:
        answer = await rig.post(CHAT, messages=[_user(image_part(file))], max_tokens=1)
        assert answer.status_code in (200, 400), (name, answer.text)
        if answer.status_code == 400:
            error = answer.json()["error"]
            assert error["code"] == "invalid_image", (name, error)
            assert error["message"].startswith("messages[0].content[0]: "), name

    await asyncio.gather(*(ask(*each) for each in files))
    answer = await rig.post(CHAT, messages=[_user(image_part(RED))], max_tokens=1)
    assert answer.status_code == 200


async def test_a_body_with_images_may_be_larger(rig: AppRig, text_rig: AppRig) -> None:
    noise = np.random.default_rng(1).integers(0, 256, (1700, 1700, 3), dtype=np.uint8)
    large = image_part(file_of(Image.fromarray(noise)))
    assert len(large["image_url"]["url"]) > MAX_BODY_BYTES
    messages = [_user({"type": "image_url", "image_url": {**large["image_url"], "detail": "low"}})]
    answer = await rig.post(CHAT, messages=messages, max_tokens=1)
    assert answer.status_code == 200, answer.text
    refused = await text_rig.post(CHAT, messages=messages, max_tokens=1)
    assert refused.status_code == 413
