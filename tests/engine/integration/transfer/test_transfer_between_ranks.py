"""Engines whose numbers of tensor-parallel ranks differ read each other's pages: for every kind of
cache the tokens are those of one engine."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from atom.model_engine.transfer_legs import TransferResult
from tests.support.engine_core.sampling_requests import mixed_requests
from tests.support.engine_core.transfer_pair import BLOCK_TOKENS, TransferPair
from tests.support.models.tiny_model import Architecture, make_tiny_checkpoint
from tests.support.ranks.rank_group import RankGroups

_NEW_TOKENS = 12
# Torch lets a process be in one group, so one of these engines is alone; several ranks on both
# sides are in test_servers_of_several_ranks_exchange_pages.
_PAIRS = ((1, 2), (2, 1), (1, 4), (4, 1))


@dataclass(frozen=True)
class Kind:
    architecture: Architecture
    options: dict[str, Any] = field(default_factory=dict)
    checkpoint: dict[str, Any] = field(default_factory=dict)


_SIZES = {"extra": {"vocab_size": 512}}
_HEADS = {"heads": 8, "kv_heads": 4, **_SIZES}
# Of which reproducible ranks sum up in an order that one rank has not.
_UNLIKE_SUMS = {
    "experts": Kind("qwen3_moe", {"reproducible": True}, _HEADS),
    "inputs of no leaves": Kind("qwen3", {"reproducible": True}, {**_HEADS, "intermediate": 66}),
}
_KINDS = {
    "dense": Kind("qwen3", {}, _HEADS),
    "dense, fp8": Kind("qwen3", {"kv_cache_dtype": "fp8"}, _HEADS),
    "two heads": Kind("qwen3", {}, {**_HEADS, "kv_heads": 2}),
    "one head, fp8": Kind("llama", {"kv_cache_dtype": "fp8"}, {**_HEADS, "kv_heads": 1}),
    "windows": Kind("gemma3", {}, _HEADS),
    "windows, fp8": Kind("gpt_oss", {"kv_cache_dtype": "fp8"}, _HEADS),
    "chunks of attention": Kind("llama4", {}, _HEADS),
    "layers that share keys": Kind("gemma4", {}, _HEADS),
    "mla": Kind("deepseek3", {}, _SIZES),
    "mla with an indexer": Kind("deepseek32", {}, _SIZES),
    "mla, fp8": Kind("deepseek3", {"kv_cache_dtype": "fp8"}, _SIZES),
    "an indexer of heads": Kind(
        "minimax_m3", {}, {**_HEADS, "extra": {"vocab_size": 512, "index_n_heads": 4}}
    ),
    "compressed entries": Kind("deepseek4", {}, _SIZES),
    "reproducible": Kind("qwen3", {"reproducible": True}, _HEADS),
}
# Four ranks, of which some have the same heads, take a process group of their own: test-all.
_IN_EVERY_RUN = {
    ((1, 2), "one head, fp8"),
    ((2, 1), "windows"),
    ((2, 1), "an indexer of heads"),
}


@pytest.fixture(scope="module")
def group_of() -> Iterator[RankGroups]:
    groups = RankGroups()
    yield groups
    groups.close()


@pytest.mark.parametrize(
    ("sizes", "name"),
    [
        pytest.param(
            *drawn,
            marks=() if drawn in _IN_EVERY_RUN else pytest.mark.whole,
            id=f"from{drawn[0][0]}to{drawn[0][1]}-{drawn[1]}",
        )
        for drawn in itertools.product(_PAIRS, _KINDS)
        if drawn[1] != "compressed entries" or 4 not in drawn[0]  # it has two groups of heads
    ],
)
def test_tokens_are_those_of_one_engine(
    group_of: RankGroups,
    sizes: tuple[int, int],
    name: str,
    tmp_path: Path,
) -> None:
    kind = _KINDS[name]
    model = make_tiny_checkpoint(tmp_path / "model", kind.architecture, **kind.checkpoint)
    ranks = (group_of(sizes[0]), group_of(sizes[1]))
    pair = TransferPair(model, ranks=ranks, **kind.options)
    try:
        assert pair.producer.core._executor.transferred_pages().tensors() == (
            pair.consumer.core._executor.transferred_pages().tensors()
        )
        asked = mixed_requests(pair.producer.config.model.vocab_size, _NEW_TOKENS)
        one = pair.consumer if sizes[1] < sizes[0] else pair.producer
        moved = 0
        for prompt, params in asked[::3]:
            expected = pair.answered_whole(prompt, params, one)
            answer = pair.decode(prompt, params, pair.prefill(prompt, params))
            assert answer.tokens == expected, params
            if answer.outcome is not None:
                assert answer.outcome.result is TransferResult.TRANSFERRED, answer
                moved += answer.outcome.tokens
        assert moved > 4 * BLOCK_TOKENS
        pair.turn_until(lambda: pair.held_blocks() == (0, 0), "both engines hold no block")
    finally:
        pair.close()


@pytest.mark.parametrize("name", _UNLIKE_SUMS)
def test_pages_of_another_order_of_sums_are_refused(
    group_of: RankGroups, name: str, tmp_path: Path
) -> None:
    """An answer must not depend on where its prompt was computed, to the bits of its
    log-probabilities."""
    kind = _UNLIKE_SUMS[name]
    model = make_tiny_checkpoint(tmp_path / "model", kind.architecture, **kind.checkpoint)
    pair = TransferPair(model, ranks=(group_of(2), None), **kind.options)
    try:
        asked = mixed_requests(pair.producer.config.model.vocab_size, _NEW_TOKENS)
        for prompt, params in asked[:6]:
            expected = pair.answered_whole(prompt, params, pair.consumer)
            answer = pair.decode(prompt, params, pair.prefill(prompt, params))
            assert answer.tokens == expected, params
            if answer.outcome is not None:
                assert answer.outcome.result is not TransferResult.TRANSFERRED, answer
        pair.turn_until(lambda: pair.held_blocks() == (0, 0), "both engines hold no block")
    finally:
        pair.close()
