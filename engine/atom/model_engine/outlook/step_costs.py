"""StepCosts: the seconds of a step by its rows and prompt tokens, learned from the newest steps.

seconds = step + row * decodes + token * prompt tokens, by least squares with no negative term over
the newest steps. A step is noted in constant time; the fit runs when it is asked for, which is
twice a second. Knows no card and no model: contexts that grow are followed, since old steps leave.
Also adds up the steps, for a comparison with a table of rates. Used by Outlook.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from atom.model_engine.schedule.step_clock import StepClock

_KEPT_STEPS = 128  # with prompts, and as many without
LEAST_STEPS = 8
_TIE_WEIGHT = 0.1
# A step that took so many times the median of its kind was a pause of the machine.
_MOST_TIMES = 8.0


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of each step, of each decode row in it, and of each prompt token in it."""

    step: float
    row: float
    token: float

    def seconds(self, rows: float, tokens: float) -> float:
        """Return the seconds of a step."""
        return self.step + self.row * rows + self.token * tokens


@dataclass(frozen=True, slots=True)
class Noted:
    """A step: its decode rows, their contexts together, its prompt tokens, and the prompts that end
    in it."""

    rows: int
    context_tokens: int
    prompt_tokens: int
    prompts_ended: int


class StepCosts:
    """Times in monotonic seconds."""

    def __init__(self) -> None:
        self._clock: StepClock[Noted] = StepClock()
        # Of each step: rows, prompt tokens, seconds.
        self._plain: deque[tuple[int, int, float]] = deque(maxlen=_KEPT_STEPS)
        self._prompts: deque[tuple[int, int, float]] = deque(maxlen=_KEPT_STEPS)
        self.seconds_total = 0.0
        self.rows_total = self.context_tokens_total = self.prompt_tokens_total = 0
        self.timed_steps_total = self.prompt_steps_total = 0

    def began(self, now: float, step: Noted) -> None:
        """Note a scheduled step."""
        self._clock.began(now, step)

    def ended(self) -> None:
        """Note that the tokens of the oldest such step are known; it ends when the next turn of the
        engine begins."""
        self._clock.ended()

    def learn(self, now: float) -> bool:
        """Take in the times of the steps whose tokens are known; return whether there are any. Also
        called before the engine waits: the time until the next step belongs to none."""
        before = self.timed_steps_total
        for step, seconds in self._clock.turn(now):
            self._take(step, seconds)
        return self.timed_steps_total > before

    def _take(self, step: Noted, seconds: float) -> None:
        kind = self._prompts if step.prompt_tokens else self._plain
        kind.append((step.rows, step.prompt_tokens, seconds))
        self.seconds_total += seconds
        self.timed_steps_total += 1
        self.rows_total += step.rows
        self.context_tokens_total += step.context_tokens
        self.prompt_tokens_total += step.prompt_tokens
        self.prompt_steps_total += step.prompt_tokens > 0

    def costs(self) -> Costs | None:
        """Fit the newest steps; None if there are too few."""
        if len(self._plain) + len(self._prompts) < LEAST_STEPS:
            return None
        plain = np.array(self._plain).reshape(-1, 3)
        usual = (
            float(np.median(plain[:, 2])) if len(plain) else min(each[2] for each in self._prompts)
        )
        plain = plain[plain[:, 2] <= _MOST_TIMES * usual]
        steps = np.concatenate([plain, np.array(self._prompts).reshape(-1, 3)])
        rows, tokens, seconds = steps[:, 0], steps[:, 1], steps[:, 2]
        matrix = np.stack([np.ones_like(rows), rows, tokens], axis=1)
        return _fitted(matrix, seconds, usual)


def _fitted(matrix: NDArray[np.float64], seconds: NDArray[np.float64], usual: float) -> Costs:
    """Minimise the squared error relative to each step, with terms at or above 0."""
    weight = 1.0 / seconds
    # In an equal batch, step and row cannot be told apart: rows are then taken to cost nothing.
    tie = np.zeros((1, 3))
    tie[0, 1] = _TIE_WEIGHT * matrix[:, 1].max() / usual
    system = np.concatenate([matrix * weight[:, None], tie])
    wanted = np.append(np.ones(len(seconds)), 0.0)
    chosen = [0, 1, 2]
    while True:
        found, *_ = np.linalg.lstsq(system[:, chosen], wanted, rcond=None)
        wrong = [place for place, value in zip(chosen, found, strict=True) if value < 0]
        if not wrong:
            break
        chosen = [place for place in chosen if place not in wrong]
    values = dict(zip(chosen, found.tolist(), strict=True))
    return Costs(values.get(0, 0.0), values.get(1, 0.0), values.get(2, 0.0))
