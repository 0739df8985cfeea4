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


async def test_requests_have_what_the_flags_say_and_the_file_has_each(
    rig: AppRig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "results.json"
    words = (
        "--temperature", "0.5", "--request-id-prefix", "run-", "--header", "x-tenant=a",
        "--ready-check-timeout-sec", "5", "--metadata", "tp=1", "--label", "mine",
        "--save-result", "--save-detailed", "--result-dir", str(tmp_path),
        "--result-filename", file.name,
    )  # fmt: skip
    assert await bench(rig.url, *words) == 0
    printed, saved = reported(capsys), json.loads(file.read_text())
    assert (saved["tp"], saved["label"], saved["backend"]) == ("1", "mine", "openai")
    assert "ttfts" not in printed
    for key in ("input_lens", "output_lens", "ttfts", "itls", "start_times", "generated_texts"):
        assert len(saved[key]) == 3, key
    assert saved["errors"] == ["", "", ""]
    assert all(saved["generated_texts"])
    assert {request.params.temperature for request in rig.core.added} == {0.5}


async def test_reports_are_appended_as_lines(rig: AppRig, tmp_path: Path) -> None:
    words = ("--append-result", "--result-dir", str(tmp_path), "--result-filename", "all.jsonl")
    for _ in range(2):
        assert await bench(rig.url, *words) == 0
    lines = (tmp_path / "all.jsonl").read_text().splitlines()
    assert [json.loads(line)["completed"] for line in lines] == [3, 3]


async def test_a_file_is_not_repeated_if_that_is_asked(rig: AppRig, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    words = ("--dataset-name", "custom", "--dataset-path", str(file))
    assert await bench(rig.url, *words) == 0
    assert await bench(rig.url, *words, "--no-oversample") == 0
    assert len(rig.core.added) == 3 + 2


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--save-detailed",), "--save-result"),
        (("--append-result", "--max-concurrency", "1,2"), "a sweep has a file of its own"),
        (("--profile",), "/start_profile"),
    ],
)
async def test_what_has_no_effect_is_refused(
    rig: AppRig, words: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await bench(rig.url, *words) == 1
    assert told in capsys.readouterr().err
