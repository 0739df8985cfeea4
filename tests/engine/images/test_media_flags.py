"""The flags that say where images may come from, and their effect in a server."""

from __future__ import annotations

from pathlib import Path

import pytest

from atom.entrypoints.cli import build_parser
from atom.entrypoints.serve_options import server_options
from atom.images.fetching import MediaRules
from atom.model_engine.async_llm_engine import AsyncLLMEngine
from atom.model_engine.front.input_output_processor import InputOutputProcessor
from tests.support.engine_core.front_half import EchoCore, build_test_config
from tests.support.server.http_app import serve_engine
from tests.support.server.seeing_model import picture, write_seeing_model


def _rules(*words: str) -> MediaRules:
    args = build_parser().parse_args(["serve", "--model", "m", *words])
    return server_options(args).chat.media


def test_sites_and_a_folder_are_allowed_by_flags(tmp_path: Path) -> None:
    assert _rules() == MediaRules()
    sites = ("Images.example.com", '["a.example", "b.example"]')
    found = _rules("--allowed-media-domains", *sites, "--allowed-local-media-path", str(tmp_path))
    assert found.domains == {"images.example.com", "a.example", "b.example"}
    assert found.local_path == tmp_path


@pytest.mark.parametrize(
    "words",
    [
        ("--allowed-media-domains", "https://images.example.com"),
        ("--allowed-media-domains", "images.example.com:8080"),
        ("--allowed-media-domains", "[3]"),
        ("--allowed-media-domains", "[a"),
        ("--allowed-local-media-path", "pictures"),
        ("--allowed-local-media-path", "/no/such/folder"),
    ],
)
def test_other_values_are_refused(
    words: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        _rules(*words)
    assert words[0] in capsys.readouterr().err


async def test_a_server_reads_pictures_of_its_folder_alone(tmp_path: Path) -> None:
    folder = write_seeing_model(tmp_path / "model")
    pictures, file = tmp_path / "pictures", tmp_path / "pictures" / "a.png"
    pictures.mkdir()
    file.write_bytes(picture(2, 2))
    config = build_test_config(folder)
    processor = InputOutputProcessor(config, media=MediaRules(local_path=pictures))
    async with serve_engine(AsyncLLMEngine(config, processor, core_factory=EchoCore)) as rig:
        for url, status in ((file.as_uri(), 200), ((folder / "config.json").as_uri(), 400)):
            parts = [{"type": "image_url", "image_url": {"url": url}}]
            messages = [{"role": "user", "content": parts}]
            answer = await rig.post("/v1/chat/completions", messages=messages, max_tokens=1)
            assert answer.status_code == status, answer.text
