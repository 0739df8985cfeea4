"""What of the environment counts for requests to the API server: its proxy, found once."""

from __future__ import annotations

from pathlib import Path

import pytest
from aiohttp import web
from kubernetes.aio.client import Configuration

from atom_operator.cluster.api_connection import ApiConnection, proxy_of_environment
from tests.support.operator.stub_api_server import stub_api_server

VARIABLES = ("http_proxy", "https_proxy", "no_proxy", "all_proxy")


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.mark.parametrize(
    ("variables", "server", "proxy"),
    [
        ({}, "https://10.0.0.1:443", None),
        ({"HTTPS_PROXY": "http://proxy:1"}, "https://api.test:6443", "http://proxy:1"),
        ({"https_proxy": "http://me:key@proxy:1"}, "https://api.test", "http://me:key@proxy:1"),
        ({"HTTP_PROXY": "http://proxy:1"}, "https://api.test", None),
        ({"HTTPS_PROXY": "http://proxy:1", "NO_PROXY": "api.test"}, "https://api.test:6443", None),
        ({"HTTPS_PROXY": "http://proxy:1", "NO_PROXY": ".test"}, "https://api.test:6443", None),
        ({"HTTPS_PROXY": "http://proxy:1", "NO_PROXY": "10.0.0.1"}, "https://10.0.0.1:443", None),
        ({"HTTPS_PROXY": "http://proxy:1", "NO_PROXY": "*"}, "https://api.test", None),
    ],
)
def test_the_proxy_is_the_one_that_variables_name(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], server: str, proxy: str | None
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert proxy_of_environment(server) == proxy


async def test_requests_go_by_the_proxy_and_carry_nothing_of_a_netrc(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[tuple[str, str | None]] = []

    def answer(request: web.Request) -> web.Response:
        seen.append((request.raw_path, request.headers.get("Authorization")))
        return web.json_response({})

    netrc = tmp_path / "netrc"
    netrc.write_text("machine api.test login me password secret\n", encoding="utf-8")
    monkeypatch.setenv("NETRC", str(netrc))

    async def login() -> Configuration:
        return Configuration(host="http://api.test", api_key={"BearerToken": "Bearer ours"})

    async with stub_api_server(answer) as stub:
        monkeypatch.setenv("HTTP_PROXY", stub.url)
        connection = ApiConnection(login)
        await connection.request("GET", "/api/v1/nodes")
        await connection.close()
    assert seen == [("http://api.test/api/v1/nodes", "Bearer ours")]
