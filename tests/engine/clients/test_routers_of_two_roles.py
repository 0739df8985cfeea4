"""Published routers divide requests over servers that compute prompts and one that answers: every
answer is that of one engine, pages are transferred, and a prefill server that is killed costs no
more errors than the requests under way on it and those until the router leaves it out."""

from __future__ import annotations

import contextlib
import json
import random
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.engine.clients.router_process import router_process
from tests.support.models.tiny_model import make_tiny_checkpoint
from tests.support.server.role_servers import CONSUMER, PRODUCER, role_flags
from tests.support.server.server_process import (
    SERVED_NAME,
    ServerProcess,
    server_process,
)
from tests.support.waiting import HANG_SECONDS, wait_until

pytestmark = pytest.mark.slow

REQUESTS, AT_ONCE = 200, 4
BREAKER = 5  # failures after which a router leaves a server out
_FLAGS = ("--max-model-len", "1024", "--num-kv-blocks", "512", "--max-num-seqs", "8")
COMMANDS = {
    "smg": ("smg", "launch", "--backend", "vllm", "--pd-disaggregation"),
    "vllm-router": ("vllm-router", "--vllm-pd-disaggregation", "--kv-connector", "nixl"),
}


@dataclass(frozen=True)
class Roles:
    producers: tuple[ServerProcess, ServerProcess]
    consumer: ServerProcess

    def transferred(self) -> float:
        return self.consumer.metric("kv_transfer_requests_total")


@pytest.fixture
def roles(tmp_path: Path) -> Iterator[Roles]:
    model = make_tiny_checkpoint(tmp_path / "model", max_position_embeddings=1024)
    with contextlib.ExitStack() as stack:

        def serve(name: str, role: str) -> ServerProcess:
            flags = (*_FLAGS, *role_flags(role, kv_connector="NixlConnector"))
            return stack.enter_context(server_process(model, tmp_path / f"{name}.log", *flags))

        servers = [serve(f"prefill-{number}", PRODUCER) for number in range(2)]
        servers.append(serve("decode", CONSUMER))
        first, second, consumer = (server.wait_ready() for server in servers)
        yield Roles((first, second), consumer)


@contextlib.contextmanager
def routed(name: str, roles: Roles, folder: Path) -> Iterator[str]:
    """Start a router before these servers, and yield its URL."""
    command = [*COMMANDS[name]]
    for producer in roles.producers:
        command += ["--prefill", producer.url]
    command += ["--decode", roles.consumer.url, "--policy", "round_robin"]
    command += ["--worker-startup-check-interval", "1", "--cb-failure-threshold", str(BREAKER)]
    folder.mkdir()
    with router_process(command, folder) as url:
        wait_until(lambda: answers(url, {"prompt": "look", "max_tokens": 1}) is not None, name)
        yield url


def answers(url: str, fields: dict[str, Any]) -> str | None:
    """Return the text of a completion or of a chat, whole or streamed; None for an error."""
    body = {"model": SERVED_NAME, **fields}
    path = "/v1/chat/completions" if "messages" in fields else "/v1/completions"
    try:
        answer = httpx.post(f"{url}{path}", json=body, timeout=HANG_SECONDS)
    except httpx.TransportError:
        return None
    if answer.status_code != 200:
        return None
    if not fields.get("stream"):
        return text_of(answer.json())
    events = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
    return "".join(text_of(json.loads(event)) for event in events)


def text_of(answer: dict[str, Any]) -> str:
    texts = []
    for choice in answer["choices"]:
        message = choice.get("message") or choice.get("delta") or {"content": choice.get("text")}
        texts.append(message.get("content") or "")
    return "".join(texts)


def drawn(number: int) -> dict[str, Any]:
    """Draw a request; prompts have a few tokens to several blocks, and some begin alike."""
    dice = random.Random(number)
    words = [dice.choice(("page", "engine", "router", "prompt", "one", "two")) for _ in range(40)]
    text = " ".join(words[: dice.randrange(1, 40)])
    if dice.random() < 0.3:
        text = f"{'every prompt of this kind begins alike ' * 3}{number % 3} {text}"
    fields: dict[str, Any] = {"max_tokens": dice.choice((1, 6, 12)), "seed": number}
    fields |= {"temperature": dice.choice((0.0, 0.8)), "stream": dice.random() < 0.4}
    if dice.random() < 0.5:
        return {"messages": [{"role": "user", "content": text}], **fields}
    return {"prompt": f"{number} {text}", **fields}


@dataclass
class Outcome:
    """Count outcomes by name. failed: numbers of the requests."""

    counts: Counter[str] = field(default_factory=Counter)
    failed: list[int] = field(default_factory=list)


def compared(url: str, roles: Roles, kill_at: int) -> Outcome:
    """Send requests, some at once, and compare each answer with that of one engine. kill_at: the
    request with which a prefill server is lost."""
    outcome = Outcome()

    def one(number: int) -> None:
        fields = drawn(number)
        if number == kill_at:
            roles.producers[0].kill_without_notice()
        given = answers(url, fields)
        if given is None:
            outcome.failed.append(number)
            return
        whole = answers(roles.consumer.url, {**fields, "cache_salt": "whole"})
        outcome.counts["equal" if given == whole else "other"] += 1

    with ThreadPoolExecutor(AT_ONCE) as threads:
        list(threads.map(one, range(REQUESTS)))
    return outcome


@pytest.mark.parametrize("name", COMMANDS)
def test_answers_through_a_router_are_those_of_one_engine(
    name: str, roles: Roles, tmp_path: Path
) -> None:
    with routed(name, roles, tmp_path / "router") as url:
        before = roles.transferred()
        half = REQUESTS // 2
        outcome = compared(url, roles, half)
        failed = sorted(outcome.failed)
        print(f"{name}: {len(failed)} of {REQUESTS} requests failed: {failed}")
        assert outcome.counts == {"equal": REQUESTS - len(failed)}
        assert all(number > half - AT_ONCE for number in failed), "none failed before the kill"
        # Those under way, and those until the router leaves the lost server out.
        assert len(failed) <= AT_ONCE + BREAKER
        assert roles.transferred() - before > REQUESTS / 3, "most prompts are long enough"
        assert roles.producers[1].metric("prompt_tokens_total") > 0
        wait_until(lambda: roles.consumer.metric("requests_running") == 0, "nothing is left")
