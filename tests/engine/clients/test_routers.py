"""Routers that nobody here wrote, at pinned versions, before two servers: answers of three APIs
come through whole and as events, both servers have their share, and one that ends is left out."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI

from tests.engine.clients.router_process import router_process
from tests.support.models.tiny_model import make_tiny_checkpoint
from tests.support.server.repeated_prompts import SHARE, RepeatedPrompts, beginnings
from tests.support.server.server_process import (
    SERVED_NAME,
    ServerProcess,
    server_process,
)
from tests.support.waiting import HANG_SECONDS, wait_until

pytestmark = pytest.mark.slow

PROMPTS, REQUESTS = 4, 6  # of `ask`
COMMANDS = {"smg": ("smg", "launch", "--backend", "vllm"), "vllm-router": ("vllm-router",)}


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[tuple[ServerProcess, ServerProcess]]:
    model = make_tiny_checkpoint(tmp_path / "model")
    with (
        server_process(model, tmp_path / "first.log", "--max-model-len", "512") as first,
        server_process(model, tmp_path / "second.log", "--max-model-len", "512") as second,
    ):
        yield first.wait_ready(), second.wait_ready()


@contextlib.contextmanager
def routed(
    name: str, servers: tuple[ServerProcess, ...], folder: Path, policy: str = "round_robin"
) -> Iterator[str]:
    """The URL of a router before these servers, of which it knows that they are well."""
    urls = [server.url for server in servers]
    command = [*COMMANDS[name], "--worker-urls", *urls, "--policy", policy]
    with router_process(command, folder) as url:
        wait_for_workers(url, len(servers), len(servers))
        yield url


def wait_for_workers(url: str, well: int, known: int) -> None:
    wanted = {"status": "ready", "healthy_workers": well, "total_workers": known}

    def told() -> bool:
        with contextlib.suppress(httpx.TransportError, ValueError):
            return httpx.get(f"{url}/readiness", timeout=HANG_SECONDS).json() == wanted
        return False

    wait_until(told, f"{well} of {known} servers are well")


def ask(client: OpenAI) -> None:
    """A chat, a completion and a response, whole and streamed, which give the same text."""
    asked: dict[str, Any] = {"model": SERVED_NAME, "max_tokens": 8, "temperature": 0}
    chat: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}], **asked}
    whole = client.chat.completions.create(**chat)
    deltas = [
        choice.delta.content or ""
        for chunk in client.chat.completions.create(stream=True, **chat)
        for choice in chunk.choices
    ]
    assert "".join(deltas) == whole.choices[0].message.content
    text: dict[str, Any] = {"prompt": "hello", **asked}
    completion = client.completions.create(**text)
    pieces = [
        choice.text
        for chunk in client.completions.create(stream=True, **text)
        for choice in chunk.choices
    ]
    assert "".join(pieces) == completion.choices[0].text
    item: dict[str, Any] = {
        "model": SERVED_NAME,
        "input": "hello",
        "max_output_tokens": 8,
        "temperature": 0,
    }
    response = client.responses.create(**item)
    parts = [
        event.delta
        for event in client.responses.create(stream=True, **item)
        if event.type == "response.output_text.delta"
    ]
    assert "".join(parts) == response.output_text == whole.choices[0].message.content


@pytest.mark.parametrize("name", COMMANDS)
def test_a_router_shares_requests_out_and_leaves_a_server_that_ended(
    name: str, servers: tuple[ServerProcess, ServerProcess], tmp_path: Path
) -> None:
    first, second = servers
    folder = tmp_path / "router"
    folder.mkdir()
    with (
        routed(name, servers, folder) as url,
        OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        assert [model.id for model in client.models.list()] == [SERVED_NAME]
        for _ in range(PROMPTS):
            ask(client)
        counts = [server.metric("requests_finished_total") for server in servers]
        assert sum(counts) == REQUESTS * PROMPTS
        assert min(counts) > 0
        first.signal(signal.SIGTERM)
        assert first.wait_exit() == 0
        wait_for_workers(url, 1, 2)
        for _ in range(PROMPTS):
            ask(client)
        assert second.metric("requests_finished_total") == counts[1] + REQUESTS * PROMPTS


@pytest.mark.parametrize("name", COMMANDS)
def test_a_cache_aware_router_sends_repeats_where_they_are_cached(
    name: str, servers: tuple[ServerProcess, ServerProcess], tmp_path: Path
) -> None:
    folder = tmp_path / "router"
    folder.mkdir()
    with routed(name, servers, folder, "cache_aware") as url:
        prompts, known = RepeatedPrompts(url), beginnings("cached")
        assert prompts.hits(known) == 0
        assert prompts.share(known) >= SHARE
        assert prompts.failed == []
