"""Prompts of one engine answered by another: of every kind of cache and every sampling control, the
tokens are those of a single engine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from atom.model_engine.transfer_legs import TransferResult
from atom.model_engine.wire.engine_protocol import AddBody, encode
from atom.sampling_params import SamplingParams
from atom.speculative_config import SpeculativeConfig
from tests.support.engine_core.sampling_requests import mixed_requests
from tests.support.engine_core.transfer_pair import BLOCK_TOKENS, TransferPair
from tests.support.models.tiny_model import Architecture, make_tiny_checkpoint

_NEW_TOKENS = 12
_whole = pytest.mark.whole


@dataclass(frozen=True)
class Kind:
    architecture: Architecture
    options: dict[str, Any]


_DRAFTS = SpeculativeConfig(num_tokens=3, fewest_matched=1, most_matched=3, adaptive=False)
_KINDS = {
    "dense": Kind("qwen3", {}),
    "dense, fp8": Kind("llama", {"kv_cache_dtype": "fp8"}),
    "windows": Kind("gemma3", {}),
    "windows, fp8": Kind("gpt_oss", {"kv_cache_dtype": "fp8"}),
    "chunks of attention": Kind("llama4", {}),
    "layers that share keys": Kind("gemma4", {}),
    "mla": Kind("deepseek3", {}),
    "mla with an indexer": Kind("deepseek32", {}),
    "compressed entries": Kind("deepseek4", {}),
    "chunked prompts": Kind("qwen3", {"max_num_batched_tokens": 24}),
    "little memory": Kind("qwen3", {"num_kv_blocks": 20, "max_model_len": 128}),
    "drafts": Kind("qwen3", {"speculative": _DRAFTS}),
    "reproducible": Kind("qwen3", {"reproducible": True}),
}
_IN_EVERY_RUN = {"dense", "windows", "mla with an indexer", "dense, fp8"}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in _IN_EVERY_RUN else _whole, id=name) for name in _KINDS],
)
def test_tokens_are_those_of_one_engine(name: str, tmp_path: Path) -> None:
    kind = _KINDS[name]
    model = make_tiny_checkpoint(tmp_path / "model", kind.architecture)
    pair = TransferPair(model, **kind.options)
    try:
        asked = mixed_requests(pair.producer.config.model.vocab_size, _NEW_TOKENS)
        moved = 0
        for prompt, params in asked:
            expected = answered_whole(pair, prompt, params)
            note = pair.prefill(prompt, params)
            answer = pair.decode(prompt, params, note)
            assert answer.tokens == expected, (name, params)
            if answer.outcome is not None:
                assert answer.outcome.result is TransferResult.TRANSFERRED, answer
                moved += answer.outcome.tokens
        assert moved > 10 * BLOCK_TOKENS
        pair.turn_until(lambda: pair.held_blocks() == (0, 0), "both engines hold no block")
    finally:
        pair.close()


def answered_whole(pair: TransferPair, prompt: list[int], params: SamplingParams) -> list[int]:
    """Its tokens of the producer alone, which has nothing of it cached."""
    request = pair.request(prompt, params, cache_salt="whole")
    pair.producer.send(*encode(AddBody([request])))
    finished = pair.producer.sockets.finished
    pair.turn_until(lambda: request.id in finished, "the whole request ends")
    return pair.producer.sockets.tokens[request.id]


def test_many_legs_at_once_are_answered_as_one_by_one(tmp_path: Path) -> None:
    pair = TransferPair(make_tiny_checkpoint(tmp_path / "model"), num_kv_blocks=64)
    try:
        asked = mixed_requests(pair.producer.config.model.vocab_size, _NEW_TOKENS)
        expected = [answered_whole(pair, prompt, params) for prompt, params in asked]
        begun = []
        for prompt, params in asked[::2]:
            note = pair.prefill(prompt, params)
            begun.append(pair.begin_decode(prompt, params, pair.leg_of(note)))
        answers = [pair.finish(request) for request in begun]
        assert [answer.tokens for answer in answers] == expected[::2]
        pair.turn_until(lambda: pair.held_blocks() == (0, 0), "both engines hold no block")
    finally:
        pair.close()


def test_an_abort_on_either_side_frees_both(tmp_path: Path) -> None:
    pair = TransferPair(make_tiny_checkpoint(tmp_path / "model"))
    try:
        prompt, params = list(range(10, 110)), SamplingParams(max_tokens=50, temperature=0.0)
        for turns in range(6):
            note = pair.prefill([turns + 10, *prompt], params)
            request = pair.begin_decode([turns + 10, *prompt], params, pair.leg_of(note))
            for _ in range(turns):
                pair.turn()
            pair.abort(request)
            pair.turn_until(
                lambda number=request.id: number in pair.consumer.sockets.finished,  # type: ignore[misc]
                "the aborted request ends",
            )
            pair.turn_until(lambda: pair.held_blocks() == (0, 0), f"after {turns} turns")
    finally:
        pair.close()


def test_engines_of_other_layouts_name_the_field_and_compute(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = make_tiny_checkpoint(tmp_path / "model")
    pair = TransferPair(model)
    other = TransferPair(model, kv_cache_dtype="fp8")
    try:
        prompt, params = list(range(10, 110)), SamplingParams(max_tokens=8, temperature=0.0)
        note = pair.prefill(prompt, params)
        answer = other.decode(prompt, params, note)
        expected = answered_whole(other, prompt, params)
    finally:
        pair.close()
        other.close()
    assert answer.outcome is not None
    assert answer.outcome.result is TransferResult.RECOMPUTED
    assert answer.outcome.reason == "incompatible"
    assert "its kv_cache_dtype is 'float32' and ours 'float8_e4m3fn'" in caplog.text
    assert caplog.text.count("refused the consumer") == 1
    assert answer.tokens == expected


def test_a_leg_with_an_unknown_ticket_is_computed(tmp_path: Path) -> None:
    pair = TransferPair(make_tiny_checkpoint(tmp_path / "model"))
    try:
        prompt, params = list(range(10, 110)), SamplingParams(max_tokens=8, temperature=0.0)
        note = msgspec.structs.replace(pair.prefill(prompt, params), ticket="0" * 32)
        answer = pair.decode(prompt, params, note)
        assert answer.outcome is not None
        assert answer.outcome.reason == "gone"
        assert answer.tokens == answered_whole(pair, prompt, params)
    finally:
        pair.close()
