"""Pages between engines by each transport: chosen by the host and by the options, with the tokens
of one engine, and without anything left when a process is killed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from atom.kv_transfer_config.values import TRANSPORTS
from atom.model_engine.kv_transfer import producer_peer, setup
from atom.model_engine.transfer_legs import TransferResult
from atom.sampling_params import SamplingParams
from tests.support.engine_core.transfer_pair import TransferPair
from tests.support.models.tiny_model import make_tiny_checkpoint

_PARAMS = SamplingParams(max_tokens=8, temperature=0.0)
_PROMPTS = [[number, *range(10, 110)] for number in range(4)]

Answers = list[tuple[TransferResult, str]]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_tiny_checkpoint(tmp_path / "model")


def answers_by(model: Path, **fields: Any) -> Answers:
    """The results of some divided requests, whose tokens are those of one engine."""
    pair = TransferPair(model, transfer=fields)
    try:
        results = [answer_of(pair, prompt) for prompt in _PROMPTS]
        pair.turn_until(lambda: pair.held_blocks() == (0, 0), "both engines hold no block")
        return results
    finally:
        pair.close()


def answer_of(pair: TransferPair, prompt: list[int]) -> tuple[TransferResult, str]:
    expected = pair.answered_whole(prompt, _PARAMS, pair.consumer)
    answer = pair.decode(prompt, _PARAMS, pair.prefill(prompt, _PARAMS))
    assert answer.tokens == expected
    assert answer.outcome is not None
    return answer.outcome.result, answer.outcome.reason


_TRANSFERRED = [(TransferResult.TRANSFERRED, "")] * len(_PROMPTS)


@pytest.mark.parametrize(("option", "used"), [("auto", "shm"), ("shm", "shm"), ("tcp", "tcp")])
def test_engines_of_one_host_use_common_memory_unless_told_otherwise(
    model: Path, option: str, used: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    assert answers_by(model, transports=TRANSPORTS[option]) == _TRANSFERRED
    assert caplog.text.count(f"come by {used}") == 1, "one connection has them all"


def hosts_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    names = iter(("one host", "another host"))
    monkeypatch.setattr(setup, "host_identity", lambda: next(names))


def no_memory_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(name: str, key: str) -> int:
        raise OSError("no such socket in this network")

    monkeypatch.setattr(producer_peer, "fetch_memory", unreachable)


@pytest.mark.parametrize("apart", [hosts_differ, no_memory_passes])
def test_memory_that_cannot_be_shared_is_replaced_by_tcp(
    model: Path,
    apart: Callable[[pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    apart(monkeypatch)
    assert answers_by(model) == _TRANSFERRED
    assert caplog.text.count("come by tcp") == 1


@pytest.mark.parametrize(
    ("apart", "reason"), [(hosts_differ, "incompatible"), (no_memory_passes, "unreachable")]
)
def test_without_a_common_transport_prompts_are_computed(
    model: Path,
    apart: Callable[[pytest.MonkeyPatch], None],
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    apart(monkeypatch)
    results = answers_by(model, transports=TRANSPORTS["shm"], lease_seconds=3.0)
    assert results == [(TransferResult.RECOMPUTED, reason)] * len(_PROMPTS)


def test_pages_larger_than_the_free_places_wait_for_them(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ring of four pages, through which seven go."""
    monkeypatch.setattr("atom.model_engine.kv_transfer.page_ring._LEAST_BYTES", 1)
    assert answers_by(model, transports=TRANSPORTS["shm"]) == _TRANSFERRED
