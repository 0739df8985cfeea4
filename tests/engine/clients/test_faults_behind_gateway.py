"""Streams through a gateway while replicas are told to end, lose their engine, are killed and come
back: every client reads to its end what it would have read on a calm day."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.support.models.tiny_model import make_tiny_checkpoint
from tests.support.server.envoy import Envoy, envoy
from tests.support.server.server_process import (
    PEERS,
    SERVED_NAME,
    ServerProcess,
    reserved_port,
    server_process,
)
from tests.support.server.streamed_answers import Answer, Ask, StreamedAnswers, asks
from tests.support.waiting import HANG_SECONDS, wait_until

pytestmark = pytest.mark.slow

REPLICAS, FRONTENDS, CLIENTS, TOKENS = 3, 2, 6, 600
FAULTS = int(os.environ.get("ATOM_TEST_FAULTS", "12"))
SEED = int(os.environ.get("ATOM_TEST_FAULTS_SEED", "3"))
# Engines on a card, where one is: `cuda`.
DEVICE = os.environ.get("ATOM_TEST_FAULTS_DEVICE", "cpu")
ON_A_CARD = ("--device", DEVICE, "--dtype", "bfloat16", "--enforce-eager")
# Else the last bits of log-probabilities follow from what else is in a batch.
FLAGS = ("--max-num-seqs", "32", "--num-kv-blocks", "2400", "--reproducible")
FLAGS += () if DEVICE == "cpu" else ON_A_CARD
RETRIES = 20  # of what is refused before it begins, as by a server that is about to end


@dataclass
class Replica:
    """A pod's say: what ends there is started again at the same address. handover_url: where its
    open answers go on; empty where servers before it see to that."""

    checkpoint: Path
    folder: Path
    port: int
    handover_url: str
    stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    starts: int = 0
    server: ServerProcess | None = None

    def start(self) -> None:
        self.starts += 1
        log = self.folder / f"{self.port}-{self.starts}.log"
        flags = [*FLAGS, "--server-port", str(self.port)]
        if self.handover_url:
            flags += ["--handover-url", self.handover_url]
        started = server_process(self.checkpoint, log, *flags, environment=PEERS)
        server = self.stack.enter_context(started)
        server.port = self.port
        self.server = server.wait_ready()

    def suffer(self, kind: str) -> None:
        """One fault, to the end of the server; then it is there again."""
        assert self.server is not None
        if kind == "told to end":
            self.server.signal(signal.SIGTERM)
            assert self.server.wait_exit() == 0
        elif kind == "killed":
            self.server.kill_without_notice()
        else:
            self.server.engine_process().kill()
            assert self.server.wait_exit() == 1
        self.stack.close()
        self.start()


@dataclass
class Clients:
    """Threads that ask for one stream after the other, by OpenAI's client."""

    url: str
    asked: list[Ask]
    expected: list[tuple[Any, ...]]
    wrong: list[str] = field(default_factory=list)
    read: int = 0
    over: threading.Event = field(default_factory=threading.Event)

    @contextlib.contextmanager
    def asking(self) -> Iterator[None]:
        numbers = itertools.count()
        threads = [
            threading.Thread(target=self._ask, args=(numbers,), daemon=True) for _ in range(CLIENTS)
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self.over.set()
            for thread in threads:
                thread.join(HANG_SECONDS)
        assert not any(thread.is_alive() for thread in threads), "a stream did not end"

    def _ask(self, numbers: Iterator[int]) -> None:
        client = openai.OpenAI(
            base_url=f"{self.url}/v1", api_key="any", max_retries=RETRIES, timeout=HANG_SECONDS
        )
        while not self.over.is_set():
            index = next(numbers) % len(self.asked)
            path, fields = self.asked[index]
            answer = Answer()
            try:
                kind = client.chat.completions if "chat" in path else client.completions
                body = {key: fields[key] for key in fields if key not in ("prompt", "messages")}
                about = {key: fields[key] for key in ("prompt", "messages") if key in fields}
                options = {"include_usage": True}
                for event in kind.create(  # type: ignore[call-overload]
                    model=SERVED_NAME, stream=True, stream_options=options, extra_body=body, **about
                ):
                    answer.add(event.model_dump())
            except openai.OpenAIError as error:
                answer.broken = repr(error)
            self.read += 1
            if answer.seen != self.expected[index]:
                pairs = zip(answer.seen, self.expected[index], strict=True)
                parts = [f"{got!r} for {want!r}"[:2000] for got, want in pairs if got != want]
                self.wrong.append(f"{path} {fields}: {parts}")


def checkpoint_in(folder: Path) -> Path:
    """Of a size that kernels of a card take, where engines are on one."""
    path = folder / "qwen3"
    hidden, head_dim = (64, 16) if DEVICE == "cpu" else (256, 64)
    make_tiny_checkpoint(
        path, "qwen3", hidden=hidden, head_dim=head_dim, max_position_embeddings=2048
    )
    return path


@contextlib.contextmanager
def replicas_behind(tmp_path: Path) -> Iterator[tuple[Envoy, list[Replica]]]:
    checkpoint = checkpoint_in(tmp_path)
    with contextlib.ExitStack() as stack:
        ports = [stack.enter_context(reserved_port()) for _ in range(REPLICAS)]
        no_picker = ("127.0.0.1", 9)
        servers = [("127.0.0.1", port) for port in ports]
        gateway = stack.enter_context(envoy(servers, no_picker, tmp_path))
        replicas = [Replica(checkpoint, tmp_path, port, gateway.spread) for port in ports]
        for replica in replicas:
            stack.callback(replica.stack.close)
            replica.start()
        gateway.wait_for_servers(REPLICAS)
        yield gateway, replicas


@contextlib.contextmanager
def frontends_behind(tmp_path: Path) -> Iterator[tuple[Envoy, list[Replica]]]:
    checkpoint = checkpoint_in(tmp_path)
    with contextlib.ExitStack() as stack:
        ports = [stack.enter_context(reserved_port()) for _ in range(REPLICAS + FRONTENDS)]
        workers = [Replica(checkpoint, tmp_path, port, "") for port in ports[:REPLICAS]]
        for worker in workers:
            stack.callback(worker.stack.close)
            worker.start()
        urls = [f"http://127.0.0.1:{worker.port}" for worker in workers]
        for port in ports[REPLICAS:]:
            flags = (*FLAGS, "--server-port", str(port), "--worker-urls", *urls)
            log = tmp_path / f"frontend-{port}.log"
            started = server_process(checkpoint, log, *flags, environment=PEERS)
            server = stack.enter_context(started)
            server.port = port
            server.wait_ready()
        servers = [("127.0.0.1", port) for port in ports[REPLICAS:]]
        gateway = stack.enter_context(envoy(servers, ("127.0.0.1", 9), tmp_path))
        gateway.wait_for_servers(FRONTENDS)
        yield gateway, workers


def suffer_faults(gateway: Envoy, replicas: list[Replica], well: int, *kinds: str) -> None:
    """One after the other, while clients ask. well: servers before Envoy that are to be well."""
    asked = asks(TOKENS)
    first = replicas[0].server
    assert first is not None
    calm = StreamedAnswers(first.url, asked).end()
    assert not any(trouble for *_, trouble in calm), calm
    clients = Clients(gateway.spread, asked, calm)
    chance = random.Random(SEED)
    with clients.asking():
        for number in range(FAULTS):
            read = clients.read
            replicas[number % REPLICAS].suffer(chance.choice(kinds))
            gateway.wait_for_servers(well)
            assert not clients.wrong, clients.wrong[0]
            wait_until(lambda: clients.read > read + CLIENTS, "streams end")  # noqa: B023
    assert not clients.wrong, clients.wrong[0]
    print({"faults": FAULTS, "streams": clients.read, "wrong or broken": len(clients.wrong)})


def test_no_stream_breaks_and_none_is_another_than_on_a_calm_day(tmp_path: Path) -> None:
    with replicas_behind(tmp_path) as (gateway, replicas):
        suffer_faults(gateway, replicas, REPLICAS, "told to end", "engine killed")


def test_behind_frontends_no_stream_notices_a_replica_that_is_killed(tmp_path: Path) -> None:
    with frontends_behind(tmp_path) as (gateway, workers):
        suffer_faults(gateway, workers, FRONTENDS, "told to end", "engine killed", "killed")
