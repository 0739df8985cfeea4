"""`atom bench serve` against a server in this process: what it sends and what it writes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from atom.entrypoints.cli import main
from tests.support.engine_core.front_half import build_test_config, write_model_folder
from tests.support.server.http_app import AppRig, serve_app

SHORT = ("--num-prompts", "3", "--input-len", "4", "--output-len", "2", "--disable-tqdm")


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[AppRig]:
    folder = write_model_folder(tmp_path, context_tokens=64)
    async with serve_app(build_test_config(folder)) as rig:
        yield rig


async def bench(url: str, *words: str) -> int:
    return await asyncio.to_thread(main, ["bench", "serve", "--base-url", url, *SHORT, *words])


def reported(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The JSON of the last line."""
    return dict(json.loads(capsys.readouterr().out.strip().splitlines()[-1]))


@pytest.mark.parametrize("end", ["", "/", "/v1", "/v1/", "/v1/completions"])
async def test_a_base_url_is_taken_as_clients_have_it(
    rig: AppRig, end: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await bench(f"{rig.url}{end}") == 0
    assert reported(capsys)["completed"] == 3


async def test_a_path_of_the_address_is_kept(
    rig: AppRig, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await bench(f"{rig.url}/models/small/v1") == 1
    assert f"{rig.url}/models/small does not answer" in capsys.readouterr().err
