"""A server without an engine divides requests over its workers by their roles, and survives the
loss of those that compute prompts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.models.tiny_model import make_tiny_checkpoint
from tests.support.server.role_servers import divided_servers
from tests.support.server.server_process import ServerProcess
from tests.support.waiting import wait_until

_LONG = "This prompt is long enough to be computed by another worker than its answer. " * 4


@dataclass(frozen=True)
class Divided:
    front: ServerProcess
    producer: ServerProcess
    consumer: ServerProcess

    def transfers(self) -> float:
        return self.consumer.metric("kv_transfer_requests_total")

    def ask(self, prompt: str, **fields: Any) -> str:
        asked = {"prompt": prompt, "max_tokens": 12, "temperature": 0.0, **fields}
        answer = self.front.post("/v1/completions", **asked)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["choices"][0]["text"])

    def alone(self, prompt: str, **fields: Any) -> str:
        """The answer of one engine."""
        asked = {"prompt": prompt, "max_tokens": 12, "temperature": 0.0, "cache_salt": "x"}
        answer = self.consumer.post("/v1/completions", **{**asked, **fields})
        return str(answer.json()["choices"][0]["text"])


@pytest.fixture
def divided(tmp_path: Path) -> Iterator[Divided]:
    model = make_tiny_checkpoint(tmp_path / "model", max_position_embeddings=1024)
    with divided_servers(model, tmp_path) as servers:
        found = Divided(*servers)
        looks = itertools.count()  # a prompt that was sent before is not divided
        wait_until(
            lambda: found.ask(f"look {next(looks)} {_LONG}") != "" and found.transfers() > 0,
            "both workers are found",
        )
        yield found


def test_long_prompts_are_computed_by_the_producer_alone(divided: Divided) -> None:
    before = divided.transfers()
    prompts = [f"{number}: {_LONG}" for number in range(4)]
    for number, prompt in enumerate(prompts):
        fields = {"seed": number, "temperature": float(number % 2)}
        assert divided.ask(prompt, **fields) == divided.alone(prompt, **fields)
    wait_until(lambda: divided.transfers() == before + 4, "four prompts have come from there")

    # Neither a short prompt nor one that the worker has cached is worth it.
    computed = divided.producer.metric("prompt_tokens_total")
    assert divided.ask("short") == divided.alone("short")
    assert divided.ask(prompts[0]) == divided.alone(prompts[0])
    assert divided.transfers() == before + 4
    assert divided.producer.metric("prompt_tokens_total") == computed
    assert divided.producer.metric("generation_tokens_total") == divided.transfers()


def test_a_producer_that_dies_costs_no_answer(divided: Divided) -> None:
    before = divided.transfers()
    divided.producer.kill_without_notice()
    for number in range(3):
        prompt = f"without it {number}: {_LONG}"
        assert divided.ask(prompt) == divided.alone(prompt)
    assert divided.transfers() == before
