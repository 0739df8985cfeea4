"""Schedules: random work for ranks that share experts, whose answers one rank has given before."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from tests.support.engine_core.core_driver import CoreDriver
from tests.support.ranks.expert_group import Arrival, ExpertGroup


def random_prompts(seed: int, *lengths: int) -> list[list[int]]:
    """Prompts of these lengths."""
    draw = np.random.default_rng(seed)
    return [draw.integers(3, 300, size=length).tolist() for length in lengths]


_LAST_TURN = 30


class Schedules:
    """Random arrivals of few prompts, whose answers one rank has given."""

    def __init__(self, model: str, **options: Any) -> None:
        self._options = options
        self._prompts = random_prompts(5, *range(1, 60, 5))
        alone = CoreDriver(model, **self._options)
        self._answers = alone.generate(self._prompts, max_tokens=20, ignore_eos=True)

    def play(self, group: ExpertGroup, model: str, seed: int, **options: Any) -> int:
        """Serve the arrivals of this seed, and hold every answer against one rank's; how many
        experts have moved."""
        draw = random.Random(seed)
        chosen = []
        for _ in range(group.size):
            # From then on a rank takes nothing new, finishes what it has and serves the others.
            closed = draw.choice((_LAST_TURN, _LAST_TURN, draw.randint(0, _LAST_TURN)))
            count = draw.choice((0, 1, 3, 8, 14))
            chosen.append([self._arrival(draw, closed) for _ in range(count)])
        arrivals = [[arrival for _, arrival in own] for own in chosen]
        # Too few blocks for all: rows are preempted.
        options = {**self._options, **options, "num_kv_blocks": 17, "max_model_len": 128}
        results = group.run(model, arrivals, **options)
        for own, found in zip(chosen, results, strict=True):
            assert found.tokens == [self._expected(*each) for each in own], f"seed {seed}"
            assert found.blocks_held == 0, f"seed {seed}"
        return results[0].expert_moves

    def _arrival(self, draw: random.Random, last_turn: int) -> tuple[int, Arrival]:
        number, count = draw.randrange(len(self._prompts)), draw.randint(1, 20)
        abort_after = draw.randint(1, count) if draw.random() < 0.2 else None
        turn = draw.randint(0, last_turn)
        return number, Arrival(self._prompts[number], count, turn, abort_after)

    def _expected(self, number: int, arrival: Arrival) -> list[int]:
        return self._answers[number][: arrival.abort_after or arrival.max_tokens]
