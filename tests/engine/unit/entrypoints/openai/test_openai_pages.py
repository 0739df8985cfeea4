"""The pages that show the API are whole on a machine that reaches no other server."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from atom.config import Config
from tests.support.server.http_app import serve_app


class _Assets(HTMLParser):
    """What a browser fetches to show the page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = {"script": "src", "link": "href", "img": "src", "redoc": "spec-url"}.get(tag)
        self.found += [value for name, value in attrs if name == named and value]


def assets_of(page: str) -> list[str]:
    parser = _Assets()
    parser.feed(page)
    return parser.found + re.findall(r"""url: ['"]([^'"]+)""", page)  # swagger-ui's own script


@pytest.mark.parametrize("path", ["/docs", "/redoc"])
async def test_everything_that_a_page_names_comes_from_this_server(
    config: Config, path: str
) -> None:
    async with serve_app(config) as rig:
        page = await rig.client.get(path)
        assert page.status_code == 200
        # What a viewer asks for by itself, browsers ask of this server or not at all.
        assert page.headers["content-security-policy"].startswith("default-src 'self' ")
        assert "http" not in page.headers["content-security-policy"]
        assets = assets_of(page.text)
        kinds = {asset.rpartition(".")[2] for asset in assets}
        assert {"js", "json"} <= kinds, assets  # the viewer and the document
        for asset in assets:
            assert asset.startswith("/"), f"{path} asks another server for {asset}"
            answer = await rig.client.get(asset)
            assert answer.status_code == 200, asset
            assert answer.content, asset
            if asset.endswith(".css"):
                wanted = re.findall(r"""url\(\s*['"]?([^'")]+)""", answer.text)
                assert all(address.startswith("data:") for address in wanted), wanted


async def test_the_viewer_is_of_a_version_that_reads_our_documents(config: Config) -> None:
    async with serve_app(config) as rig:
        document = (await rig.client.get("/openapi.json")).json()
        assert document["openapi"].startswith("3.1.")  # swagger-ui reads these since version 5
        assets = assets_of((await rig.client.get("/docs")).text)
        (script,) = [asset for asset in assets if asset.endswith(".js")]
        viewer = (await rig.client.get(script)).text
        assert re.search(r'PACKAGE_VERSION:"([0-9]+)\.', viewer)[1] == "5"


async def test_the_page_opens_on_a_request_that_can_be_sent(config: Config) -> None:
    async with serve_app(config) as rig:
        document = (await rig.client.get("/openapi.json")).json()
        operation = document["paths"]["/v1/chat/completions"]["post"]
        page = (await rig.client.get("/docs")).text
        # An address of swagger-ui: the operation's tag and its id.
        assert f"#/{operation['tags'][0]}/{operation['operationId']}" in page
        assert '"tryItOutEnabled": true' in page
        assert '"validatorUrl": null' in page, "the document is nobody else's business"
        assert operation["requestBody"]["content"]["application/json"]["example"]["messages"]
