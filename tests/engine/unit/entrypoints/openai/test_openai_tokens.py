"""/tokenize and /detokenize say what generation would see."""

from __future__ import annotations

import pytest

from tests.support.engine_core.front_half import SERVED_NAME
from tests.support.server.http_app import AppRig


async def test_a_text_is_counted_and_comes_back(rig: AppRig) -> None:
    body = (await rig.post("/tokenize", model=SERVED_NAME, prompt="grüße")).json()
    assert body["count"] == len(body["tokens"]) == len("grüße".encode())
    assert body["max_model_len"] == 64
    back = await rig.post("/detokenize", tokens=body["tokens"])
    assert back.json() == {"prompt": "grüße"}


async def test_a_conversation_is_what_the_chat_endpoint_sends_to_the_model(rig: AppRig) -> None:
    messages = [{"role": "user", "content": "hi"}]
    tokens = (await rig.post("/tokenize", messages=messages)).json()["tokens"]
    await rig.chat("hi", max_tokens=1)
    assert rig.core.added[0].prompt_token_ids == tokens


async def test_a_text_too_long_to_serve_is_still_counted(rig: AppRig) -> None:
    body = (await rig.post("/tokenize", prompt="a" * 20_000)).json()
    assert body["count"] == 20_000
    assert len((await rig.post("/detokenize", tokens=body["tokens"])).json()["prompt"]) == 20_000


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/tokenize", {}, 400),
        ("/tokenize", {"prompt": "a", "messages": [{"role": "user", "content": "b"}]}, 400),
        ("/tokenize", {"prompt": 3}, 400),
        ("/tokenize", {"prompt": "a", "model": "other"}, 404),
        ("/tokenize", {"messages": []}, 400),
        ("/detokenize", {}, 400),
        ("/detokenize", {"tokens": ["a"]}, 400),
        ("/detokenize", {"tokens": [-1]}, 400),
        ("/detokenize", {"tokens": [10**6]}, 400),
        ("/detokenize", {"tokens": [2**70]}, 400),
    ],
)
async def test_wrong_bodies_are_refused(rig: AppRig, path: str, body: dict, status: int) -> None:
    response = await rig.post(path, **body)
    assert response.status_code == status
    error = response.json()["error"]
    assert error["message"]
    assert error["param"] in (None, *body) if body else error["param"]
