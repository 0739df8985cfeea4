"""Addresses that people get wrong: the 404 says which one was meant."""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from atom.entrypoints.api_server import _addresses, build_routes
from atom.entrypoints.http.client_url import server_url
from atom.entrypoints.http.meant_address import _ELSEWHERE, meant_address
from atom.entrypoints.openai.state import ServerState
from tests.support.engine_core.front_half import build_test_config, write_model_folder
from tests.support.server.http_app import AppRig, serve_app


def routes() -> list[str]:
    app = build_routes(ServerState(), needs_key=False)
    paths = _addresses(app._others.routes)  # type: ignore[attr-defined]
    return sorted({path for path in paths if "{" not in path and path != "/"})


ROUTES = routes()


def edits(path: str) -> Iterator[str]:
    """A path as people get it wrong: the base URL's /v1 lost or doubled, a slash, a letter."""
    yield path + "/"
    yield path.replace("/", "//", 1)
    yield path.upper()
    if path.startswith("/v1/"):
        yield path.removeprefix("/v1")
        yield f"/v1{path}"
        yield f"/v1/v1{path}"
    for index in range(1, len(path)):
        if path[index] != "/" and path[index - 1] != "/":
            yield path[:index] + path[index + 1 :]
            yield path[:index] + 2 * path[index] + path[index + 1 :]
            if index + 1 < len(path) and "/" != path[index + 1] != path[index]:
                yield path[:index] + path[index + 1] + path[index] + path[index + 2 :]


@pytest.mark.sampled(20)
@pytest.mark.parametrize("route", ROUTES)
def test_an_edit_of_a_route_is_told_with_the_route(route: str) -> None:
    for path in edits(route):
        if path in ROUTES or path in _ELSEWHERE or path.removeprefix("/v1") in ROUTES:
            continue
        assert route in meant_address(path, ROUTES).rstrip("?").replace("?", " ").split(), path


@pytest.mark.parametrize("path", _ELSEWHERE)
def test_other_servers_addresses_are_told_with_ours(path: str) -> None:
    assert _ELSEWHERE[path] in ROUTES, path
    assert path in ROUTES or meant_address(path, ROUTES) == f"did you mean {_ELSEWHERE[path]}?"


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/chat/completions", "did you mean /v1/chat/completions? A base URL ends with /v1, once"),
        ("/v1/v1/messages", "did you mean /v1/messages? A base URL ends with /v1, once"),
        ("/v1/chat/completion", "did you mean /v1/chat/completions?"),
        ("/api/tag", "did you mean /api/tags?"),
        ("/api/chats", "did you mean /api/chat?"),
        ("/openai/deployments/gpt/chat/completions", "did you mean /v1/chat/completions?"),
        ("/v1beta/models/gemini:generateContent", "did you mean /v1/chat/completions?"),
        ("/v1beta/models/gemini:streamGenerateContent", "did you mean /v1/chat/completions?"),
        ("/v2/models/m/infer", "did you mean /v1/completions?"),
        ("/something/else/altogether", ""),
        ("/favicon.ico", ""),
    ],
)
def test_sentences_of_usual_mistakes(path: str, meant: str) -> None:
    assert meant_address(path, ROUTES) == meant


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[AppRig]:
    async with serve_app(build_test_config(write_model_folder(tmp_path))) as rig:
        yield rig


async def test_the_server_answers_with_the_sentence(rig: AppRig) -> None:
    for path in ("/chat/completions", "/v1/v1/chat/completions", "/v1/chat/completion"):
        answer = await rig.post(path, messages=[])
        assert answer.status_code == 404
        assert "did you mean /v1/chat/completions?" in answer.json()["error"]["message"], path
    lost = await rig.client.get("/what/is/this")
    assert "/openapi.json lists" in lost.json()["error"]["message"]


# ---- base URLs ----------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "h", "h:1", "[::1]:8000", "h/models/small"])
@pytest.mark.parametrize(
    "end", ["", "/", "/v1", "/v1/", "/v1/v1", "/v1/chat/completions", "/v1/models"]
)
def test_the_apis_part_of_a_base_url_is_taken_off(host: str, end: str) -> None:
    for scheme in ("http", "https"):
        assert server_url(f"{scheme}://{host}{end}") == f"{scheme}://{host}"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("localhost:8000", "did you mean http://localhost:8000?"),
        ("h/v1", "did you mean http://h/v1?"),
        ("ftp://h", "http://HOST:PORT"),
        ("", "http://HOST:PORT"),
        ("http://", "http://HOST:PORT"),
        ("http://h:port", "http://HOST:PORT"),
        ("http://h:99999", "http://HOST:PORT"),
        ("http://h:0", "http://HOST:PORT"),
        ("http://a b", "http://HOST:PORT"),
        ("http://[::1", "http://HOST:PORT"),
        ("http://h/?x=1", "before ? and #"),
    ],
)
def test_what_is_no_address_is_refused_with_one(text: str, told: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError) as refusal:
        server_url(text)
    assert told in str(refusal.value)
