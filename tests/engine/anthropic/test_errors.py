"""Whatever refuses a request of Anthropic's API, its error has that API's shape."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.engine_core.front_half import build_test_config, write_model_folder
from tests.support.server.http_app import AppRig, serve_app
from tests.support.waiting import eventually

PATH = "/v1/messages"
BODY = {"model": "tiny", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}
VERSION = {"anthropic-version": "2023-06-01"}
KEY = "sk-right"


def kind_of(response: httpx.Response, status: int) -> str:
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"type", "error", "request_id"}
    assert body["type"] == "error"
    assert set(body["error"]) == {"type", "message"}
    assert body["error"]["message"]
    assert body["request_id"] == response.headers["request-id"] == response.headers["x-request-id"]
    assert response.headers["content-length"] == str(len(response.content))
    return str(body["error"]["type"])


@pytest.fixture
async def held(tmp_path: Path) -> AsyncIterator[AppRig]:
    config = build_test_config(write_model_folder(tmp_path, context_tokens=4096))
    async with serve_app(config, held=True) as rig:
        yield rig


async def test_every_layer_answers_in_its_shape(rig: AppRig) -> None:
    post = rig.client.post
    assert kind_of(await post(PATH, content=b"{"), 400) == "invalid_request_error"
    assert kind_of(await post(PATH, json={**BODY, "model": "x"}), 404) == "not_found_error"
    assert kind_of(await rig.client.get(PATH), 405) == "invalid_request_error"
    assert kind_of(await post(f"{PATH}/batches", json={}), 404) == "not_found_error"
    assert kind_of(await post(PATH, content=b" " * (9 << 20)), 413) == "request_too_large"
    unknown = await rig.client.get("/v1/files", headers=VERSION)
    assert kind_of(unknown, 404) == "not_found_error"
    counted = await post(f"{PATH}/count_tokens", json={"model": "x", "messages": BODY["messages"]})
    assert kind_of(counted, 404) == "not_found_error"
    assert "param" in (await post("/v1/chat/completions", json={})).json()["error"]


async def test_a_thread_is_refused_as_its_clients_go_on_from(rig: AppRig) -> None:
    asked = await rig.client.post(PATH, json={**BODY, "thread": {"type": "create"}})
    assert asked.status_code == 400
    error = asked.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["message"].startswith("thread is not supported by this server: send the whole")
    assert error["details"] == {"error_code": "thread_unsupported_request"}


async def test_a_dead_engine_is_no_overload(held: AppRig) -> None:
    """Of which clients would think that it passes."""
    held.core.die()
    await eventually(lambda: held.state.is_ending, "the engine is known to be dead")
    assert kind_of(await held.client.post(PATH, json=BODY), 503) == "api_error"


async def test_keys_come_by_either_header(config: Any) -> None:
    async with serve_app(config, api_key=KEY) as rig:

        async def ask(**headers: str) -> httpx.Response:
            return await rig.client.post(PATH, json=BODY, headers=headers)

        assert kind_of(await ask(), 401) == "authentication_error"
        assert kind_of(await ask(**{"x-api-key": "wrong"}), 401) == "authentication_error"
        for headers in (
            {"x-api-key": KEY},
            {"authorization": f"Bearer {KEY}"},
            {"x-api-key": "wrong", "authorization": f"Bearer {KEY}"},
            {"x-api-key": KEY, "authorization": "Bearer wrong"},
        ):
            assert (await ask(**headers)).status_code == 200
        models = await rig.client.get("/v1/models", headers={"x-api-key": KEY})
        assert models.json()["object"] == "list"


async def test_a_stream_that_fails_ends_with_an_error_event(held: AppRig) -> None:
    events: list[str] = []

    async def read() -> None:
        async with held.client.stream("POST", PATH, json={**BODY, "stream": True}) as response:
            assert response.headers["request-id"]
            async for line in response.aiter_lines():
                events.append(line)

    reading = asyncio.create_task(read())
    await eventually(lambda: bool(held.core.added), "the request is there")
    held.core.die("killed by the test")
    await reading
    names = [line.removeprefix("event: ") for line in events if line.startswith("event: ")]
    assert names == ["message_start", "ping", "error"]
    last = json.loads([line for line in events if line.startswith("data: ")][-1][6:])
    assert (last["type"], last["error"]["type"]) == ("error", "api_error")
    assert "killed by the test" in last["error"]["message"]


async def test_models_are_listed_by_who_asks(rig: AppRig) -> None:
    ours = (await rig.client.get("/v1/models")).json()
    assert ours["data"][0]["object"] == "model"
    page = (await rig.client.get("/v1/models", headers=VERSION)).json()
    assert (page["first_id"], page["last_id"], page["has_more"]) == ("tiny", "tiny", False)
    assert page["data"][0]["type"] == "model"
    one = (await rig.client.get("/v1/models/tiny", headers=VERSION)).json()
    assert one == page["data"][0]
    bad = await rig.client.get("/v1/models?limit=x", headers=VERSION)
    assert kind_of(bad, 400) == "invalid_request_error"


async def test_whoever_looks_for_a_server_finds_one(rig: AppRig) -> None:
    assert (await rig.client.head("/")).status_code == 200
