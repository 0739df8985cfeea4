"""Web pages that ask the server from a browser: browsers let through what these headers allow."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from atom.config import Config
from tests.support.server.http_app import AppRig, serve_app

PAGE = "https://chat.example.com"
KEY = "sk-of-the-test"
PREFLIGHT = {
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type",
}


@pytest.fixture
async def locked(config: Config) -> AsyncIterator[AppRig]:
    async with serve_app(config, api_key=KEY, allowed_origins=[PAGE]) as rig:
        yield rig


async def test_a_browser_is_told_that_an_allowed_page_may_send_its_key(locked: AppRig) -> None:
    headers = {"origin": PAGE, **PREFLIGHT}
    response = await locked.client.options("/v1/chat/completions", headers=headers)
    assert response.status_code == 200
    assert response.headers["access-control-allow-origin"] == PAGE
    assert "POST" in response.headers["access-control-allow-methods"]
    assert "authorization" in response.headers["access-control-allow-headers"].lower()


async def test_an_allowed_page_reads_answers_streams_and_refusals(locked: AppRig) -> None:
    body = {"prompt": "ab", "max_tokens": 2}
    page = {"origin": PAGE, "authorization": f"Bearer {KEY}"}
    whole = await locked.client.post("/v1/completions", json=body, headers=page)
    stream = {**body, "stream": True}
    events = await locked.client.post("/v1/completions", json=stream, headers=page)
    refused = await locked.client.post("/v1/completions", json=body, headers={"origin": PAGE})
    assert [whole.status_code, events.status_code, refused.status_code] == [200, 200, 401]
    assert events.text.endswith("data: [DONE]\n\n")
    for response in (whole, events, refused):
        assert response.headers["access-control-allow-origin"] == PAGE
        assert "x-request-id" in response.headers["access-control-expose-headers"].lower()


async def test_another_page_is_not_allowed(locked: AppRig) -> None:
    other = {"origin": "https://elsewhere.example.com", "authorization": f"Bearer {KEY}"}
    asked = await locked.client.options("/v1/completions", headers={**other, **PREFLIGHT})
    answer = await locked.client.get("/v1/models", headers=other)
    for response in (asked, answer):
        assert "access-control-allow-origin" not in response.headers


async def test_no_page_is_allowed_unless_one_is_named(rig: AppRig) -> None:
    response = await rig.client.get("/v1/models", headers={"origin": PAGE})
    assert "access-control-allow-origin" not in response.headers
    asked = await rig.client.options("/v1/models", headers={"origin": PAGE, **PREFLIGHT})
    assert asked.status_code == 405


async def test_every_page_may_be_allowed(config: Config) -> None:
    async with serve_app(config, allowed_origins=["*"]) as rig:
        response = await rig.client.get("/v1/models", headers={"origin": PAGE})
        assert response.headers["access-control-allow-origin"] == "*"
