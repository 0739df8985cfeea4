"""Reproducible answers of two and of four ranks are the bits of one, whatever memory they have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from tests.support.engine_core.core_driver import CoreDriver
from tests.support.engine_core.reproducible_requests import (
    MEMORIES,
    OPTIONS,
    alone,
    answers,
    differing,
    reproducible_requests,
)
from tests.support.models.tiny_model import make_tiny_checkpoint
from tests.support.ranks.group_shapes import wide_checkpoint
from tests.support.ranks.rank_group import RankGroup

# Whose layers are dense; others are refused, or have experts.
DENSE = [
    "dense",
    "dense, a head of its own that is tied",
    "biases and windows",
    "scaled rope",
    "a window in every layer",
    "biases of q, k and v alone",
    "layers without positions",
    "a rope of neighbours",
    "scales",
    "norms of rotated heads",
    "fused matrices, a part of each head rotated",
    "latent attention",
]
WITH_EXPERTS = ["experts", "a shared expert behind a gate", "latent attention with experts"]


@pytest.fixture(scope="module", params=[2, 4])
def ranks(request: pytest.FixtureRequest) -> Iterator[RankGroup]:
    group = RankGroup(request.param)
    yield group
    group.close()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kv_heads", [2, 4])
def test_ranks_give_the_bits_of_one(kv_heads: int, ranks: RankGroup, tmp_path: Path) -> None:
    """Of a model whose projections back into the stream have biases; four ranks hold two KV heads
    twice."""
    shape = {"kv_heads": kv_heads, "attention_bias": True, "extra": {"vocab_size": 384}}
    _compare(str(make_tiny_checkpoint(tmp_path, "llama", **shape)), ranks, requests=6, tokens=6)


def test_ranks_norm_all_heads_as_one_does(ranks: RankGroup, tmp_path: Path) -> None:
    """Squares of every head are one sum; four ranks hold two heads of keys twice."""
    model = wide_checkpoint(tmp_path, "norms of all heads", kv_heads=2)
    _compare(model, ranks, requests=6, tokens=6, little={"num_kv_blocks": 24})


@pytest.mark.slow
@pytest.mark.parametrize("family", DENSE)
def test_ranks_give_the_bits_of_one_for_many_requests(
    family: str, ranks: RankGroup, tmp_path: Path
) -> None:
    _compare(wide_checkpoint(tmp_path, family), ranks, requests=20, tokens=8)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["norms behind, layers without positions", "norms of all heads"])
def test_ranks_of_windows_with_blocks_of_their_own(
    family: str, ranks: RankGroup, tmp_path: Path
) -> None:
    """Which is why a sequence takes more blocks than elsewhere."""
    model = wide_checkpoint(tmp_path, family)
    _compare(model, ranks, requests=20, tokens=8, little={"num_kv_blocks": 24})


def _compare(
    model: str,
    ranks: RankGroup,
    *,
    requests: int,
    tokens: int,
    little: Mapping[str, int] = MappingProxyType({}),
) -> None:
    """little: of the engine's options, where those of MEMORIES are too few."""
    asked = reproducible_requests(requests, tokens)
    expected = alone(CoreDriver(model, **OPTIONS), asked)
    for memory, options in MEMORIES.items():
        own = little if memory == "little memory" else {}
        together = ranks.driver(model, **{**OPTIONS, **options, **own})
        found = answers(together, asked)
        preempted = together.scheduler.stats().preemptions_total
        together.close()
        assert (memory, *differing(found, expected)) == (memory, 0, 0)
        assert (preempted > 0) == (memory == "little memory")


@pytest.mark.slow
@pytest.mark.parametrize("family", WITH_EXPERTS)
def test_ranks_of_experts_repeat_themselves(family: str, ranks: RankGroup, tmp_path: Path) -> None:
    asked = reproducible_requests(40, 12)
    together = ranks.driver(wide_checkpoint(tmp_path, family), **OPTIONS)
    found = answers(together, asked)
    one_by_one = alone(together, asked)
    together.close()
    assert differing(found, one_by_one) == (0, 0)
