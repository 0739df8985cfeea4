"""Ranks that share experts say what one rank says, whatever the others have to do meanwhile.

One rank's tokens are the measure, which other tests hold against transformers. Ranks are processes
over gloo, started once for all models; each has requests of its own.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.engine.integration.test_tensor_parallel import FAMILIES, OPTIONS
from tests.support.core_driver import CoreDriver
from tests.support.expert_group import Arrival, ExpertGroup
from tests.support.tiny_model import make_tiny_checkpoint

WITH_EXPERTS = (
    "experts",
    "sinks, windows, biases of experts",
    "latent attention with experts",
)


@pytest.fixture(scope="module")
def pair() -> Iterator[ExpertGroup]:
    ranks = ExpertGroup(2)
    yield ranks
    ranks.close()


def checkpoint(folder: Path, family: str, **shape: int) -> str:
    settings = {**FAMILIES[family], **shape}
    extra = {"vocab_size": 384, **settings.pop("extra", {})}
    return str(make_tiny_checkpoint(folder, **settings, extra=extra))


def _prompts(seed: int, *lengths: int) -> list[list[int]]:
    draw = np.random.default_rng(seed)
    return [draw.integers(3, 300, size=length).tolist() for length in lengths]


@pytest.mark.parametrize("family", WITH_EXPERTS)
def test_two_ranks_say_what_one_does(family: str, pair: ExpertGroup, tmp_path: Path) -> None:
    """The first has prompts of every length, the second comes later and goes on for longer."""
    model = checkpoint(tmp_path, family)
    first, second = _prompts(1, 1, 15, 40, 100), _prompts(2, 16, 30)
    arrivals = [
        [Arrival(prompt, 6) for prompt in first],
        [Arrival(prompt, 14, turn=3) for prompt in second],
    ]
    found = pair.run(model, arrivals, **OPTIONS)
    alone = CoreDriver(model, **OPTIONS)
    assert found[0].tokens == alone.generate(first, max_tokens=6, ignore_eos=True)
    assert found[1].tokens == alone.generate(second, max_tokens=14, ignore_eos=True)
    assert found[0].served > 0
    assert all(rank.weights_bytes < alone.report.weights_bytes for rank in found)
    assert not any(rank.blocks_held for rank in found)


def test_preempted_rows_shared_prefixes_and_requests_given_up(
    pair: ExpertGroup, tmp_path: Path
) -> None:
    model, options = checkpoint(tmp_path, "experts"), {**OPTIONS, "num_kv_blocks": 18}
    prefix = _prompts(3, 64)[0]
    prompts = [prefix + tail for tail in _prompts(4, 3, 5, 20, 33)]
    alone = CoreDriver(model, **options)
    expected = alone.generate(prompts, max_tokens=40, ignore_eos=True)
    given_up = Arrival(prompts[1], 40, turn=5, abort_after=7)
    arrivals = [[*(Arrival(prompt, 40) for prompt in prompts), given_up], [given_up] * 3]
    for found in pair.run(model, arrivals, **options), pair.run(model, arrivals, **options):
        assert found[0].tokens == [*expected, expected[1][:7]]
        assert found[1].tokens == [expected[1][:7]] * 3
        assert not any(rank.blocks_held for rank in found)
    assert found[0].preemptions > 0
    assert found[0].cached_tokens > 0


class _Schedules:
    """Random arrivals of few prompts, whose answers one rank has given."""

    def __init__(self, model: str) -> None:
        self._prompts = _prompts(5, *range(1, 60, 5))
        alone = CoreDriver(model, **OPTIONS)
        self._answers = alone.generate(self._prompts, max_tokens=20, ignore_eos=True)

    def play(self, group: ExpertGroup, model: str, seed: int) -> None:
        draw = random.Random(seed)
        chosen = [
            [self._arrival(draw) for _ in range(draw.choice((0, 1, 3, 8, 14)))]
            for _ in range(group.size)
        ]
        arrivals = [[arrival for _, arrival in own] for own in chosen]
        # Too few blocks for all: rows are preempted.
        options = {**OPTIONS, "num_kv_blocks": 17}
        for own, found in zip(chosen, group.run(model, arrivals, **options), strict=True):
            assert found.tokens == [self._expected(*each) for each in own], f"seed {seed}"
            assert found.blocks_held == 0, f"seed {seed}"

    def _arrival(self, draw: random.Random) -> tuple[int, Arrival]:
        number, count = draw.randrange(len(self._prompts)), draw.randint(1, 20)
        abort_after = draw.randint(1, count) if draw.random() < 0.2 else None
        turn = draw.randint(0, 30)
        return number, Arrival(self._prompts[number], count, turn, abort_after)

    def _expected(self, number: int, arrival: Arrival) -> list[int]:
        return self._answers[number][: arrival.abort_after or arrival.max_tokens]


def test_random_schedules_of_two_ranks(pair: ExpertGroup, tmp_path: Path) -> None:
    model = checkpoint(tmp_path, "experts")
    schedules = _Schedules(model)
    for seed in range(5):
        schedules.play(pair, model, seed)


@pytest.mark.slow
def test_a_thousand_random_schedules_of_two_ranks(pair: ExpertGroup, tmp_path: Path) -> None:
    model = checkpoint(tmp_path, "experts")
    schedules = _Schedules(model)
    for seed in range(1000):
        schedules.play(pair, model, seed)


@pytest.mark.slow
@pytest.mark.parametrize("family", WITH_EXPERTS)
def test_four_ranks_say_what_one_does(family: str, tmp_path: Path) -> None:
    experts = {"num_local_experts": 8, "num_experts": 8}  # of which each has two
    settings = FAMILIES[family]
    extra = {key: experts.get(key, value) for key, value in settings["extra"].items()}
    shape = {**settings, "extra": {"vocab_size": 384, **extra}}
    model = str(make_tiny_checkpoint(tmp_path, **shape))
    four = ExpertGroup(4)
    try:
        schedules = _Schedules(model)
        for seed in range(20):
            schedules.play(four, model, seed)
    finally:
        four.close()
