"""Clients that nobody here wrote, at pinned versions, against the real server with a scripted
model: each chats, streams, calls a tool and sends its result, and gets a typed answer, by every
API that it speaks; those that embed get the vectors that the server computes."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.engine.agents.session import call, check_installed
from tests.engine.clients.programs.exchange import PERSON, TEXTS, WEATHER
from tests.support.models.pooling_checkpoint import make_embedder
from tests.support.server.scripted_model import scripted
from tests.support.server.server_process import ServerProcess, server_process
from tests.support.waiting import within
from tools.pinned_environments import ANTHROPIC_TESTS, CLIENTS, python_bin

pytestmark = pytest.mark.slow

PROGRAMS = Path(__file__).parent / "programs"
HELLO, SUNNY = "Hello there.", "It is sunny in Paris."
ADA: dict[str, Any] = {"name": "Ada", "age": 36}
EXCHANGED = {"chat": HELLO, "calls": ["Paris"], "answer": SUNNY, "person": ADA}
# Of each program the parts of its output that are whole exchanges, and whether it embeds.
CLIENTS_PARTS: dict[str, tuple[set[str], bool]] = {
    "openai_client": ({"chats", "responses"}, True),
    "anthropic_client": ({"messages"}, False),
    "openai_agents": ({"chats", "responses"}, False),
    "litellm_client": ({"chats", "hosted_vllm", "messages", "responses"}, True),
    "langchain_client": (
        {"chats", "chats_by_function", "responses", "messages", "messages_by_function"},
        True,
    ),
    "llama_index_client": ({"chats", "chats_by_schema"}, True),
    "pydantic_ai_client": ({"chats", "responses", "messages"}, True),
    "llm_client": ({"chats"}, False),
}

ENVIRONMENTS = {"anthropic_client": ANTHROPIC_TESTS}  # its newest; others bring an older one


def script(prompt: str) -> str:
    """What the model says to the questions of programs/exchange.py."""
    asked = prompt.rpartition("<|im_start|>user\n")[2]
    if "<tool_response>" in asked:
        return SUNNY
    if WEATHER in asked:
        thought = "<think>\nI had better look.\n</think>\n\n"
        return thought + call("get_weather", city="Paris")
    if PERSON not in asked:
        return HELLO
    offered = re.search(r'"name": "(\w+)"', prompt)  # a client may ask for types by a tool
    return json.dumps(ADA) if offered is None else call(offered[1], **ADA)


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("embedder")
    model = make_embedder(folder / "model")
    with server_process(model, folder / "log", "--max-model-len", "512") as server:
        yield server.wait_ready()


@pytest.fixture(scope="module")
def embedded(embedder: ServerProcess) -> list[list[float]]:
    """The vectors of the programs' texts, as the server writes them in JSON."""
    data = embedder.post("/v1/embeddings", input=TEXTS).json()["data"]
    return [each["embedding"] for each in data]


async def output_of(name: str, folder: Path, *words: str) -> dict[str, Any]:
    """Run a program of the clients' environment; returns its output."""
    python = python_bin(ENVIRONMENTS.get(name, CLIENTS)) / "python"
    check_installed(python)
    return await told_by([python, PROGRAMS / f"{name}.py"], folder, *words)


async def told_by(program: Sequence[str | Path], folder: Path, *words: str) -> dict[str, Any]:
    """Run a program in an empty home; returns the JSON of its last line."""
    home = folder / "home"
    home.mkdir()
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "LLM_USER_PATH": str(home),
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "OPENAI_API_KEY": "none",  # some look for one beside what they are given
    }
    process = await asyncio.create_subprocess_exec(
        *program,
        *words,
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, errors = await within(process.communicate(), f"the end of {program[1]}")
    assert process.returncode == 0, errors.decode()
    told: dict[str, Any] = json.loads(out.decode().splitlines()[-1])
    return told


@pytest.mark.parametrize("name", CLIENTS_PARTS)
async def test_a_client_chats_streams_calls_and_parses(
    name: str, tmp_path: Path, embedder: ServerProcess, embedded: list[list[float]]
) -> None:
    parts, embeds = CLIENTS_PARTS[name]
    (tmp_path / "model").mkdir()
    async with scripted(tmp_path / "model", script) as rig:
        told = await output_of(name, tmp_path, rig.url, embedder.url)
    vectors = told.pop("embeddings", None)
    assert set(told) == parts
    for part, got in told.items():
        assert "".join(got.pop("pieces")) == HELLO, part
        assert got == EXCHANGED, part
    assert (vectors is not None) == embeds
    if embeds:
        for vector, wanted in zip(vectors, embedded, strict=True):
            assert vector == pytest.approx(wanted, abs=1e-6)


async def test_instructor_gets_types_in_each_of_its_ways(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    async with scripted(tmp_path / "model", script) as rig:
        told = await output_of("instructor_client", tmp_path, rig.url, rig.url)
    assert told == dict.fromkeys(("tools", "json", "json_schema", "messages"), ADA)
