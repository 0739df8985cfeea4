"""Loads whose arrivals are those of another program: of `atom bench serve`, or of closed loops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from atom.advisor.simulation import Due
from atom.advisor.step_shape import StepShape
from atom.advisor.step_time import StepTimer
from atom.entrypoints.bench.arrivals import arrival_seconds

_LARGEST_TOKEN = 2**31 - 1


@dataclass(frozen=True, slots=True)
class EqualLoad:
    """Requests of equal lengths that share nothing. Implements the advisor's Load."""

    dues: Sequence[Due]
    input_tokens: int
    outputs: int

    @classmethod
    def at_rate(cls, count: int, rate: float, lengths: tuple[int, int], seed: int = 0) -> EqualLoad:
        """Return the arrivals that `atom bench serve` has at a rate."""
        return cls([Due(at) for at in arrival_seconds(count, rate, 1.0, seed)], *lengths)

    @classmethod
    def in_loops(cls, count: int, loops: int, lengths: tuple[int, int]) -> EqualLoad:
        """Return requests of so many clients that each send the next one after an answer."""
        dues = [Due(0.0, (place - loops,) if place >= loops else ()) for place in range(count)]
        return cls(dues, *lengths)

    def prompt(self, place: int) -> list[int]:
        draw = np.random.default_rng(place)
        tokens: list[int] = draw.integers(_LARGEST_TOKEN, size=self.input_tokens).tolist()
        return tokens

    def output_tokens(self, place: int) -> int:
        return self.outputs

    @property
    def prompt_tokens(self) -> int:
        return self.input_tokens * len(self.dues)


def most_rate(timer: StepTimer, rows: int, lengths: tuple[int, int]) -> float:
    """Return the requests per second that steps of so many rows alone allow. lengths: tokens of a
    prompt and its answer."""
    prompt, answer = lengths
    token = timer.seconds(StepShape.decodes(rows, prompt + answer // 2)) / rows
    return 1.0 / (answer * token + timer.seconds(StepShape.prompt(prompt)))
