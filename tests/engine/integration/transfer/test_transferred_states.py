"""Prompts of models that keep states, computed by one engine and answered by another: the tokens
are those of one engine, for every family and numbers of ranks, and only the last few are computed
where they are answered."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from atom.model_engine.transfer_legs import TransferResult
from atom.sampling_params import SamplingParams
from atom.speculative_config import SpeculativeConfig
from tests.support.engine_core.frame_proxy import Action, Fault, FrameProxy
from tests.support.engine_core.sampling_requests import mixed_requests
from tests.support.engine_core.transfer_pair import BLOCK_TOKENS, TransferPair
from tests.support.engine_core.wired_core import WiredCore
from tests.support.models.tiny_model import Architecture, make_tiny_checkpoint
from tests.support.ranks.rank_group import RankGroups

_whole = pytest.mark.whole
_GREEDY = SamplingParams(max_tokens=6, temperature=0.0)
_FAMILIES: tuple[Architecture, ...] = (
    "qwen3_next", "qwen3_5", "qwen3_5_moe", "granite_hybrid", "nemotron_h", "kimi_linear", "lfm2",
    "lfm2_moe",
)  # fmt: skip
_IN_EVERY_RUN = {"qwen3_next", "lfm2"}
_DRAFTS = SpeculativeConfig(num_tokens=3, fewest_matched=1, most_matched=3, adaptive=False)
_EARLIER = SpeculativeConfig(method="suffix", num_tokens=3, adaptive=False)
_OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {}, "chunks": {"max_num_batched_tokens": 24}, "drafts": {"speculative": _DRAFTS},
    "earlier-answers": {"speculative": _EARLIER},
}  # fmt: skip


def check(pair: TransferPair, one: WiredCore, every: int) -> None:
    """Divide some requests. one: the engine whose tokens are expected."""
    moved = 0
    for prompt, params in mixed_requests(pair.producer.config.model.vocab_size, 12)[::every]:
        expected = pair.answered_whole(prompt, params, one)
        note = pair.prefill(prompt, params)
        answer = pair.decode(prompt, params, note)
        assert answer.tokens == expected, params
        whole = (len(prompt) - 1) // BLOCK_TOKENS * BLOCK_TOKENS
        assert note.num_tokens in (whole, 0), "it ends at the last whole block"
        if answer.outcome is not None:
            assert answer.outcome.result is TransferResult.TRANSFERRED, answer
            assert answer.end.num_cached_tokens == whole
            moved += answer.outcome.tokens
    assert moved > 2 * BLOCK_TOKENS
    pair.turn_until(lambda: pair.held_blocks() == (0, 0), "both engines hold no block")
    for core in (pair.producer, pair.consumer):
        checkpoints = core.core._scheduler.blocks.checkpoints
        assert checkpoints is not None
        assert not checkpoints._pins


@pytest.mark.parametrize(
    ("family", "options"),
    [
        pytest.param(
            family,
            options,
            marks=() if family in _IN_EVERY_RUN and options == "plain" else _whole,
            id=f"{family}-{options}",
        )
        for family, options in itertools.product(_FAMILIES, _OPTIONS)
    ],
)
def test_tokens_are_those_of_one_engine(family: Architecture, options: str, tmp_path: Path) -> None:
    pair = TransferPair(make_tiny_checkpoint(tmp_path / "model", family), **_OPTIONS[options])
    try:
        check(pair, pair.producer, 4)
    finally:
        pair.close()


@pytest.fixture(scope="module")
def group_of() -> Iterator[RankGroups]:
    groups = RankGroups()
    yield groups
    groups.close()


@_whole
@pytest.mark.parametrize("sizes", [(1, 2), (2, 1)], ids=str)
@pytest.mark.parametrize("family", _FAMILIES)
def test_other_numbers_of_ranks_say_the_same(
    family: Architecture, sizes: tuple[int, int], group_of: RankGroups, tmp_path: Path
) -> None:
    model = make_tiny_checkpoint(tmp_path / "model", family, extra={"vocab_size": 512})
    pair = TransferPair(model, ranks=(group_of(sizes[0]), group_of(sizes[1])))
    try:
        tensors = [
            core.core._executor.transferred_pages().tensors()
            for core in (pair.producer, pair.consumer)
        ]
        assert tensors[0] == tensors[1], "pages do not depend on the ranks"
        check(pair, pair.producer if sizes[0] == 1 else pair.consumer, 5)
    finally:
        pair.close()


@pytest.mark.parametrize("number", [pytest.param(0, marks=_whole), 5])
@pytest.mark.parametrize("action", [Action.CUT, pytest.param(Action.GARBLE, marks=_whole)])
def test_without_all_pages_the_prompt_is_computed(
    number: int, action: Action, tmp_path: Path
) -> None:
    """The page of states is the last of a want, and no prefix without it is used."""
    model = make_tiny_checkpoint(tmp_path / "model", "lfm2")
    pair = TransferPair(model, transfer={"transports": ("tcp",)})
    prompt = list(range(10, 95))  # of five whole blocks
    try:
        expected = pair.answered_whole(prompt, _GREEDY)
        note = pair.prefill(prompt, _GREEDY)
        with FrameProxy((note.host, note.port), Fault("page", action, number)) as proxy:
            pair.place = proxy.address
            answer = pair.decode(prompt, _GREEDY, note)
            assert proxy.met
        assert answer.tokens == expected
        assert answer.outcome is not None
        assert answer.outcome.reason
        assert answer.end.num_cached_tokens == 0
        checkpoints = pair.consumer.core._scheduler.blocks.checkpoints
        assert checkpoints is not None
        assert not checkpoints._pins
    finally:
        pair.close()


def test_states_of_a_ticket_outlive_the_cache_and_other_prompts(tmp_path: Path) -> None:
    """The cache is emptied and every checkpoint used by others before the pages are read."""
    pair = TransferPair(make_tiny_checkpoint(tmp_path / "model", "lfm2"), num_kv_blocks=48)
    prompt = list(range(10, 95))
    try:
        expected = pair.answered_whole(prompt, _GREEDY)
        note = pair.prefill(prompt, _GREEDY)
        pair.producer.core.reset_prefix_cache()
        for number in range(20):
            other = [number + 20, *range(100, 190)]
            pair.answered_whole(other, _GREEDY)
        answer = pair.decode(prompt, _GREEDY, note)
        assert answer.tokens == expected
        assert answer.outcome is not None
        assert answer.outcome.result is TransferResult.TRANSFERRED, answer
    finally:
        pair.close()
