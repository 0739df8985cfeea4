"""Ranks that share experts say what one rank says, whatever the others have to do meanwhile.

One rank's tokens are the measure, which other tests hold against transformers. Ranks are processes
over gloo, started once for all models; each has requests of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.integration.ranks.test_tensor_parallel import FAMILIES, OPTIONS
from tests.support.engine_core.core_driver import CoreDriver
from tests.support.models.tiny_model import make_tiny_checkpoint
from tests.support.ranks.expert_group import Arrival, ExpertGroup
from tests.support.ranks.expert_schedules import Schedules, random_prompts

WITH_EXPERTS = (
    "experts",
    "sinks, windows, biases of experts",
    "latent attention with experts",
    "chunks, experts of weighed inputs",
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


@pytest.mark.parametrize("family", WITH_EXPERTS)
def test_two_ranks_say_what_one_does(family: str, pair: ExpertGroup, tmp_path: Path) -> None:
    """The first has prompts of every length, the second comes later and goes on for longer."""
    model = checkpoint(tmp_path, family)
    first, second = random_prompts(1, 1, 15, 40, 100), random_prompts(2, 16, 30)
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
    prefix = random_prompts(3, 64)[0]
    prompts = [prefix + tail for tail in random_prompts(4, 3, 5, 20, 33)]
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


def test_random_schedules_of_two_ranks(pair: ExpertGroup, tmp_path: Path) -> None:
    model = checkpoint(tmp_path, "experts")
    schedules = Schedules(model, **OPTIONS)
    for seed in range(5):
        schedules.play(pair, model, seed)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("redundant", [0, 2])
@pytest.mark.parametrize("family", ["experts", "sinks, windows, biases of experts"])
def test_experts_that_move_say_the_same(
    family: str, redundant: int, pair: ExpertGroup, tmp_path: Path
) -> None:
    model = checkpoint(tmp_path, family)
    schedules = Schedules(model, **OPTIONS)
    balance = {"window_steps": 4, "interval_steps": 6, "redundant": redundant}
    moves = [schedules.play(pair, model, seed, balance=balance) for seed in range(1, 4)]
    assert moves[-1] > 0


@pytest.mark.slow
def test_a_thousand_random_schedules_of_two_ranks(pair: ExpertGroup, tmp_path: Path) -> None:
    model = checkpoint(tmp_path, "experts")
    schedules = Schedules(model, **OPTIONS)
    for seed in range(1000):
        schedules.play(pair, model, seed)
