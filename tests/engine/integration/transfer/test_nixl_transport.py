"""Pages that NIXL reads from another engine's memory: tokens of one engine for every kind of cache,
between processes too, and a peer or a package that is lost costs a computation."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from atom.errors import ConfigError
from atom.kv_transfer_config.values import TRANSPORTS, WITH_NIXL, KVTransferConfig
from atom.model_engine.kv_transfer import nixl_agent
from atom.model_engine.kv_transfer.nixl_agent import NixlAgent, NixlError, RemoteWindow
from atom.model_engine.kv_transfer.page_ring import HostRing, ring_bytes
from atom.model_engine.kv_transfer.ring_offers import Movers
from atom.model_engine.kv_transfer.setup import usable_transports
from atom.model_engine.transfer_legs import TransferResult
from atom.sampling_params import SamplingParams
from tests.support.engine_core.sampling_requests import mixed_requests
from tests.support.engine_core.transfer_pair import TransferPair
from tests.support.models.tiny_model import Architecture, make_tiny_checkpoint
from tests.support.server.role_servers import complete, role_servers

_NIXL = TRANSPORTS["nixl"]
_whole = pytest.mark.whole
_KINDS = [
    pytest.param("gemma3", {}, id="windows"),
    pytest.param("qwen3", {}, id="dense", marks=_whole),
    pytest.param("llama", {"kv_cache_dtype": "fp8"}, id="fp8", marks=_whole),
    pytest.param("deepseek32", {}, id="mla with an indexer", marks=_whole),
    pytest.param("deepseek4", {}, id="compressed entries", marks=_whole),
]


@pytest.mark.parametrize(("architecture", "options"), _KINDS)
def test_tokens_are_those_of_one_engine(
    architecture: Architecture,
    options: dict[str, Any],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rings of four pages: places are written again and again."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr("atom.model_engine.kv_transfer.page_ring._LEAST_BYTES", 1)
    model = make_tiny_checkpoint(tmp_path / "model", architecture)
    pair = TransferPair(model, transfer={"transports": _NIXL}, **options)
    try:
        for prompt, params in mixed_requests(pair.producer.config.model.vocab_size, 12)[::6]:
            expected = pair.answered_whole(prompt, params)
            answer = pair.decode(prompt, params, pair.prefill(prompt, params))
            assert answer.tokens == expected
            if answer.outcome is not None:
                assert answer.outcome.result is TransferResult.TRANSFERRED, answer
        pair.turn_until(lambda: pair.held_blocks() == (0, 0), "both engines hold no block")
    finally:
        pair.close()
    assert caplog.text.count("come by nixl") == 1


_PROMPT, _GREEDY = list(range(10, 110)), SamplingParams(max_tokens=6, temperature=0.0)


@pytest.mark.parametrize("at", [0, pytest.param(3, marks=_whole)])
def test_a_read_that_fails_costs_a_computation(
    at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = TransferPair(make_tiny_checkpoint(tmp_path / "model"), transfer={"transports": _NIXL})
    real, count = NixlAgent.read, 0

    async def failing(self: NixlAgent, window: RemoteWindow, place: int, size: int) -> None:
        nonlocal count
        count += 1
        if count == at + 1:
            raise NixlError("the network is gone")
        await real(self, window, place, size)

    monkeypatch.setattr(NixlAgent, "read", failing)
    try:
        expected = pair.answered_whole(_PROMPT, _GREEDY)
        answer = pair.decode(_PROMPT, _GREEDY, pair.prefill(_PROMPT, _GREEDY))
        assert answer.tokens == expected
        assert answer.outcome is not None
        assert answer.outcome.reason == "connection_lost"
        again = pair.decode(_PROMPT[1:], _GREEDY, pair.prefill(_PROMPT[1:], _GREEDY))
        assert again.outcome is not None
        assert again.outcome.result is TransferResult.TRANSFERRED, "another connection has them"
    finally:
        pair.close()


def test_memory_that_was_not_promised_is_not_read() -> None:
    theirs, ours = NixlAgent("a producer"), NixlAgent("a consumer")
    registered, descriptors = theirs.offer(HostRing(4096))
    with pytest.raises(NixlError, match="at most 4096"):
        ours.open(registered, 4096)
    with pytest.raises(NixlError, match="could not have"):
        ours.open(type(registered)(b"no agent", 0, 4096), 4096)
    for _ in range(nixl_agent.MOST_WINDOWS):
        ours.open(registered, ring_bytes(4096))
    assert not ours.has_room
    theirs.withdraw(descriptors)


def test_a_missing_package_is_named_with_its_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Asked for alone it ends the start; as one of several transports the others do the work."""
    monkeypatch.setattr(nixl_agent, "nixl_package", lambda: None)
    with pytest.raises(ConfigError, match=r"transport is nixl: .*pip install"):
        usable_transports(KVTransferConfig(transports=_NIXL), "one")
    found = usable_transports(KVTransferConfig(transports=WITH_NIXL), "one")
    assert found == (("shm", "tcp"), Movers())
    assert "pages travel by shm or tcp: NIXL is not installed; run: pip install" in caplog.text


def test_a_package_that_cannot_start_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nixl_agent, "nixl_package", lambda: "json")
    with pytest.raises(NixlError, match=r"NIXL \(json\) cannot start: ModuleNotFoundError"):
        NixlAgent("one")


_TEXT = "The pages of this prompt are read by the process that answers it. " * 4


@pytest.mark.parametrize(
    "architecture",
    [pytest.param(name, marks=_whole) for name in ("qwen3", "gemma3", "deepseek3")],
)
def test_processes_read_pages_and_survive_a_killed_producer(
    architecture: Architecture, tmp_path: Path
) -> None:
    model = make_tiny_checkpoint(tmp_path / "model", architecture, max_position_embeddings=1024)
    leg = {"max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}
    extra = {"transport": "nixl"}
    with role_servers(model, tmp_path, extra=extra) as (producer, consumer):
        prompts = [f"{number}: {_TEXT}" for number in range(3)]
        wholes = [complete(producer, prompt, cache_salt="whole")[0] for prompt in prompts]
        legs = [complete(producer, prompt, **leg)[0]["kv_transfer_params"] for prompt in prompts]
        for number, prompt in enumerate(prompts):
            if number == 2:
                producer.kill_without_notice()
            answer, source = complete(consumer, prompt, kv_transfer_params=legs[number])
            assert answer["choices"][0]["text"] == wholes[number]["choices"][0]["text"]
            assert source.startswith("recomputed" if number == 2 else "transferred"), source
    assert "come by nixl" in (tmp_path / "kv_consumer.log").read_text()
