"""The clients of Ollama and Cohere for JavaScript and Cohere's for Python, at pinned versions,
against the real server (tests/engine/ollama has Ollama's client for Python)."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.clients.programs.exchange import (
    FUNCTION,
    HELLO,
    PERSON,
    PERSON_SCHEMA,
    TEXTS,
    WEATHER,
)
from tests.engine.clients.test_clients import EXCHANGED, PROGRAMS, output_of, script, told_by
from tests.engine.clients.test_clients import HELLO as SAID
from tests.support.engine_core.front_half import SERVED_NAME, build_test_config
from tests.support.models.pooling_checkpoint import make_embedder
from tests.support.models.tiny_model import make_tiny_checkpoint
from tests.support.server.http_app import serve_model
from tests.support.server.scripted_model import scripted
from tests.support.server.seeing_model import picture
from tests.support.server.server_process import ServerProcess, server_process
from tests.support.waiting import eventually
from tools.agents import COHERE_JS, OLLAMA_JS, NpmPackage

pytestmark = pytest.mark.slow

EXCHANGE: dict[str, Any] = {
    "model": SERVED_NAME, "hello": HELLO, "weather": WEATHER, "person": PERSON, "texts": TEXTS,
    "function": FUNCTION, "schema": PERSON_SCHEMA, "sunny": "sunny, 20 degrees",
}  # fmt: skip
RANKED = {"model": SERVED_NAME, "query": TEXTS[0], "texts": [*TEXTS, "x"]}


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("embedder")
    model = make_embedder(folder / "model")
    with server_process(model, folder / "log", "--max-model-len", "512") as server:
        yield server.wait_ready()


async def told_by_js(package: NpmPackage, name: str, folder: Path, *words: str) -> dict[str, Any]:
    """Run a program of JavaScript with a package; returns its output."""
    assert package.path.exists(), f"{package.package} is not installed: run make agents"
    node = shutil.which("node")
    assert node is not None, "Node.js is not installed: make agents needs it"
    program = [node, PROGRAMS / f"{name}.mjs", package.folder]
    return await told_by(program, folder, *words)


async def test_ollamas_javascript_chats_streams_calls_parses_and_embeds(
    tmp_path: Path, embedder: ServerProcess
) -> None:
    data = embedder.post("/v1/embeddings", input=TEXTS).json()["data"]
    (tmp_path / "model").mkdir()
    async with scripted(tmp_path / "model", script) as rig:
        words = (rig.url, embedder.url, json.dumps(EXCHANGE))
        told = await told_by_js(OLLAMA_JS, "ollama_client", tmp_path, *words)
    assert "".join(told["chats"].pop("pieces")) == SAID
    assert told["chats"] == EXCHANGED
    for vector, wanted in zip(told["embeddings"], data, strict=True):
        assert vector == pytest.approx(wanted["embedding"], abs=1e-6)


async def test_ollamas_javascript_shows_a_picture_and_lists_the_model(tmp_path: Path) -> None:
    file = tmp_path / "picture.png"
    file.write_bytes(picture(5, 3))
    async with scripted(tmp_path / "model", script, reads_images=True) as rig:
        words = (rig.url, rig.url, json.dumps(EXCHANGE), str(file))
        told = await told_by_js(OLLAMA_JS, "ollama_client", tmp_path, *words)
        sizes = [[image.num_tokens for image in each.images] for each in rig.core.requests]
    assert sizes == [[15]] * 3
    assert set(told["seen"].values()) == {SAID}
    assert told["shows"]["listed"] == told["shows"]["running"] == [SERVED_NAME]
    assert {"completion", "tools", "vision"} <= set(told["shows"]["capabilities"])
    assert told["shows"]["version"].count(".") == 2


async def test_a_stream_that_ollamas_javascript_ends_is_over_in_the_engine(tmp_path: Path) -> None:
    model = make_tiny_checkpoint(tmp_path / "model", max_position_embeddings=100_000)
    config = build_test_config(model, num_kv_blocks=7000)
    async with serve_model(config) as rig:
        words = (rig.url, rig.url, json.dumps({**EXCHANGE, "stops": True}))
        told = await told_by_js(OLLAMA_JS, "ollama_client", tmp_path, *words)
        await eventually(lambda: rig.engine.open_requests == 0, "the request ends")
        metrics = (await rig.client.get("/metrics")).text
        await rig.assert_well()
    assert told["stopped"]["error"] == "AbortError"
    assert re.search(r'requests_finished_total.*finished_reason="abort".*} 1', metrics)


@pytest.mark.parametrize("language", ["python", "javascript"])
async def test_coheres_clients_rank_as_the_server_does(
    language: str, tmp_path: Path, embedder: ServerProcess
) -> None:
    body = {"query": RANKED["query"], "documents": RANKED["texts"]}
    ranked = embedder.post("/v1/rerank", **body).json()["results"]
    wanted = [[each["index"], each["relevance_score"]] for each in ranked]
    words = (embedder.url, json.dumps(RANKED))
    if language == "python":
        told = await output_of("cohere_client", tmp_path, *words)
    else:
        told = await told_by_js(COHERE_JS, "cohere_client", tmp_path, *words)
    for version in ("v1", "v2"):
        assert [index for index, _ in told[version]] == [index for index, _ in wanted[:2]]
        scores = [score for _, score in told[version]]
        assert scores == pytest.approx([score for _, score in wanted[:2]], abs=1e-6)
    assert told["documents"] == [each["document"]["text"] for each in ranked]
