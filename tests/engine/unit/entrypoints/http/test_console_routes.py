"""The page at / and its files, as any client gets them."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from atom.config import Config
from atom.entrypoints.console.console_routes import FOLDER, console_routes
from atom.entrypoints.flags.flag_parser import FlagParser
from atom.entrypoints.serve import add_serve_arguments
from atom.entrypoints.serve_options import server_options
from atom.entrypoints.server_parts import ListenOptions
from atom.errors import ConfigError
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
        loopback = [
            f"{scheme}://{host}:*"
            for scheme in ("http", "https")
            for host in ("localhost", "127.0.0.1")
        ]
        assert " ".join(["connect-src 'self'", *loopback]) in rules
        others = [rule for rule in rules if not rule.startswith("connect-src")]
        assert all("unsafe" not in rule and "http" not in rule for rule in others)


@pytest.mark.parametrize(
    ("flags", "sources"),
    [
        (["none"], ""),
        (["*"], " http: https:"),
        (["tools.example.com"], " https://tools.example.com"),
        (["http://10.0.0.7:8001", "*.example.com:8443"],
         " http://10.0.0.7:8001 https://*.example.com:8443"),
    ],
)  # fmt: skip
async def test_the_operator_says_which_mcp_servers_the_page_may_call(
    flags: list[str], sources: str
) -> None:
    options = listen_options("--page-mcp-hosts", *flags)
    app = FastAPI()
    app.include_router(console_routes(mcp_hosts=options.mcp_hosts))
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://page") as client:
        policy = (await client.get("/")).headers["content-security-policy"]
    assert f"connect-src 'self'{sources}" in policy.split("; ")


@pytest.mark.parametrize(
    ("flags", "fault"),
    [
        (["https://tools.example.com/mcp"], "without a path"),
        (["tools.example.com;script-src"], "no origin such as"),
        (["http://[::1]:80"], "no origin such as"),
        (["none", "*"], "none allows no server"),
        (["*", "--disable-console"], "is about the page that --disable-console removes"),
    ],
)
def test_values_that_name_no_server_are_refused(
    flags: list[str], fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises((ConfigError, SystemExit)) as error:
        listen_options("--page-mcp-hosts", *flags)
    assert fault in " ".join(f"{error.value} {capsys.readouterr().err}".split())


def listen_options(*flags: str) -> ListenOptions:
    parser = FlagParser(prog="atom serve")
    add_serve_arguments(parser)
    return server_options(parser.parse_args(["model", *flags])).listen


async def test_no_script_or_style_stands_in_the_page_itself(config: Config) -> None:
    page = (FOLDER / "index.html").read_text()
    assert not re.search(r"<style|<script(?![^>]*src=)|\son[a-z]+=|\sstyle=", page)
    for path in own_scripts():
        # Highlight.js has a function that writes markup; the page takes its tree of names instead.
        for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
            assert way not in path.read_text(), "what a model writes is text, never markup"


def vendored() -> list[dict[str, str]]:
    rows: list[dict[str, str]] = json.loads((FOLDER / "vendored.json").read_text())
    return rows


def own_scripts() -> list[Path]:
    others = {row["file"] for row in vendored()}
    return [path for path in FOLDER.glob("*.js") if path.name not in others]


def test_vendored_libraries_are_those_that_are_named() -> None:
    """Each is a published file, unchanged, with its licence; together they stay small."""
    assert all(path.stat().st_size < 12_000 for path in own_scripts()), "a library without its row"
    for row in vendored():
        assert hashlib.sha256((FOLDER / row["file"]).read_bytes()).hexdigest() == row["sha256"]
        licence = (FOLDER / row["licenceFile"]).read_text()
        assert "Permission is hereby granted" in licence or "Redistribution and use" in licence
    sizes = {row["file"]: (FOLDER / row["file"]).stat().st_size for row in vendored()}
    assert sum(sizes.values()) < 560_000
    # With the page itself comes only the first one; the others with code or a formula.
    first = (FOLDER / "markdown.js").read_text()
    assert [name for name in sizes if f'from "./{name}"' in first] == ["markdown-it.js"]


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
