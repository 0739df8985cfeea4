"""Ranks that race their shards apart draw what one race over all logits draws."""

from __future__ import annotations

import pytest
import torch

from atom.collectives.group import Alone
from atom.model_ops.backends import resolve_ops
from atom.model_ops.backends.interface import SamplingTensors
from atom.model_ops.backends.noise import GROUP
from atom.model_ops.sampling.ranked_draw import can_draw_apart, ranked_draw
from tests.engine.ops.inputs import FLOAT32

ROWS, RANKS = 300, 4


class Together(Alone):
    """One of several ranks in this process: what it tells is kept, what all tell is handed in."""

    def __init__(self, rank: int, told: list[torch.Tensor]) -> None:
        self.rank, self.size = rank, RANKS
        self._told = told

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        self._told[self.rank] = x
        return torch.cat(self._told, dim=1)


def _draw(
    logits: torch.Tensor, sampling: SamplingTensors, backend: str = "auto"
) -> list[torch.Tensor]:
    """What each rank draws, once every one has told its winner."""
    ops = resolve_ops("cpu", FLOAT32, backend).ops
    told = [torch.zeros(len(logits), 2, dtype=torch.float64)] * RANKS
    shards = logits.chunk(RANKS, dim=1)
    for _ in range(2):
        drawn = [
            ranked_draw(shard, sampling, ops, Together(rank, told))
            for rank, shard in enumerate(shards)
        ]
    return drawn


def _sampling(temperature: torch.Tensor) -> SamplingTensors:
    draw = torch.Generator().manual_seed(5)
    return SamplingTensors(
        temperature=temperature,
        seed=torch.randint(-(2**62), 2**62, (ROWS,), generator=draw),
        position=torch.randint(0, 9999, (ROWS,), generator=draw),
        all_greedy=not temperature.any(),
    )


@pytest.mark.parametrize("backend", ["torch_ref", "auto"])
def test_every_rank_draws_what_one_would(backend: str) -> None:
    logits = torch.randn(ROWS, 6 * GROUP * RANKS, generator=torch.Generator().manual_seed(1)) * 4
    temperature = torch.rand(ROWS, generator=torch.Generator().manual_seed(2)) * 2
    temperature[::5] = 0.0
    sampling = _sampling(temperature)
    expected = resolve_ops("cpu", FLOAT32, backend).ops.sample(logits.clone(), sampling)
    for drawn in _draw(logits, sampling, backend):
        assert torch.equal(drawn, expected)
    assert len(set(expected.tolist())) > ROWS // 2


def test_of_equal_logits_the_first_wins_whoever_has_it() -> None:
    logits = torch.zeros(ROWS, GROUP * RANKS)
    logits[:, 2 * GROUP - 1] = logits[:, 3 * GROUP] = 1.0
    for drawn in _draw(logits, _sampling(torch.zeros(ROWS))):
        assert (drawn == 2 * GROUP - 1).all()


def test_a_shard_that_splits_a_group_races_alone_only_where_all_are_greedy() -> None:
    greedy, drawing = _sampling(torch.zeros(ROWS)), _sampling(torch.ones(ROWS))
    assert can_draw_apart(2 * GROUP, drawing)
    assert not can_draw_apart(2 * GROUP + 1, drawing)
    assert can_draw_apart(2 * GROUP + 1, greedy)
