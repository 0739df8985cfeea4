"""The page at / and its files, as any client gets them."""

from __future__ import annotations

import hashlib
import json
import re

import pytest

from atom.config import Config
from atom.entrypoints.console.console_routes import FOLDER
from tests.support.engine_core.front_half import build_test_config, write_model_folder
from tests.support.server.http_app import serve_app


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    return build_test_config(write_model_folder(tmp_path_factory.mktemp("model")))


async def test_browsers_are_told_to_run_and_ask_nothing_but_this_server(config: Config) -> None:
    async with serve_app(config, api_key="a-key") as rig:
        page = await rig.client.get("/")  # a browser that opens it can send no key
        assert page.status_code == 200
        named = re.findall(r'(?:src|href)="(console/[^"]+)"', page.text)
        assert {name.rpartition(".")[2] for name in named} == {"js", "css", "svg"}
        imported = {f"console/{path.name}" for path in FOLDER.glob("*.js")}
        for address in {*named, *imported}:
            answer = await rig.client.get(f"/{address}")
            assert answer.status_code == 200, address
            assert (
                answer.headers["content-security-policy"]
                == (page.headers["content-security-policy"])
            )
        rules = page.headers["content-security-policy"].split("; ")
        assert "default-src 'none'" in rules
        assert all("unsafe" not in rule and "http" not in rule for rule in rules)


async def test_no_script_or_style_stands_in_the_page_itself(config: Config) -> None:
    page = (FOLDER / "index.html").read_text()
    assert not re.search(r"<style|<script(?![^>]*src=)|\son[a-z]+=|\sstyle=", page)
    for path in FOLDER.glob("*.js"):
        assert "innerHTML" not in path.read_text(), "what a model writes is text, never markup"


def test_vendored_libraries_are_those_that_are_named() -> None:
    """Each is a published file, unchanged, with its licence; together they stay small."""
    named = json.loads((FOLDER / "vendored.json").read_text())
    assert {row["file"] for row in named} == {
        path.name for path in FOLDER.glob("*.js") if len(path.read_text().splitlines()) > 500
    }
    for row in named:
        assert hashlib.sha256((FOLDER / row["file"]).read_bytes()).hexdigest() == row["sha256"]
        assert "Permission is hereby granted" in (FOLDER / row["licenceFile"]).read_text()
    assert sum((FOLDER / row["file"]).stat().st_size for row in named) < 500_000


async def test_load_balancers_may_ask_by_head(config: Config) -> None:
    async with serve_app(config) as rig:
        assert (await rig.client.head("/")).status_code == 200


async def test_there_is_none_where_it_is_switched_off(config: Config) -> None:
    async with serve_app(config, console=False) as rig:
        answer = await rig.client.get("/")
        assert answer.status_code == 404
        assert "there is no GET /" in answer.json()["error"]["message"]
        assert (await rig.client.get("/console/main.js")).status_code == 404


async def test_nothing_but_its_files_is_given(config: Config) -> None:
    async with serve_app(config) as rig:
        for name in ("console_routes.py", "..%2Fconsole_routes.py", "index.html", "nothing.js"):
            assert (await rig.client.get(f"/console/{name}")).status_code == 404, name
