"""MeasuredCost: the cost of steps with and without drafts, as timed at start.

The timing includes launches, verification and the draft layers, which a formula can only guess.
Most steps are timed on short contexts, and some on a long one; the difference gives the cost of a
row's context and the share that each of its drafts adds. Pure numpy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Timed(NamedTuple):
    """The measured time of a step whose rows each carried `drafts` drafts and attended to `context`
    tokens; context 0 means a short one."""

    rows: int
    drafts: int
    seconds: float
    context: int = 0


class MeasuredCost:
    """Computes a step's cost from steps that were timed. timed: steps without drafts and with one
    of each row, and where drafts are made one after the other with several, by ascending rows; and
    of those without and with most drafts some on a long context, if any."""

    def __init__(self, timed: Sequence[Timed]) -> None:
        near = [step for step in timed if not step.context]
        self._plain = _Curve([(step.rows, step.seconds) for step in near if step.drafts == 0])
        self._drafted = _Curve([(2 * step.rows, step.seconds) for step in near if step.drafts == 1])
        # From the second draft on, a step costs as much as its tokens, plus making the draft.
        self._further = _Curve(
            [
                (step.rows, max(0.0, step.seconds - self._of_tokens(step)) / (step.drafts - 1))
                for step in near
                if step.drafts > 1
            ]
            or [(1, 0.0)]
        )
        # Per row and token of its context: seconds without drafts, and for each draft.
        far = {step.drafts: self._a_token(step) for step in timed if step.context}
        self._attended = far.get(0, 0.0)
        self._again = max(
            [0.0, *((each - self._attended) / drafts for drafts, each in far.items() if drafts)]
        )

    def of_steps(
        self, rows: int, lengths: NDArray[np.float64], context: float = 0.0
    ) -> NDArray[np.float64]:
        """Return the seconds of steps with so many rows, all with the same number of drafts, for
        each of `lengths`; context: tokens that a row attends to."""
        short = np.array([self._short(rows, length) for length in lengths.tolist()])
        a_token = self._attended + self._again * lengths
        cost: NDArray[np.float64] = short + context * rows * a_token
        return cost

    def _short(self, rows: int, drafts: float) -> float:
        """Return the seconds of a step on short contexts."""
        if not drafts:
            return self._plain.at(rows)
        return self._drafted.at(rows * (1 + drafts)) + self._further.at(rows) * (drafts - 1)

    def _of_tokens(self, step: Timed) -> float:
        return self._drafted.at(step.rows * (1 + step.drafts))

    def _a_token(self, step: Timed) -> float:
        short = self._short(step.rows, step.drafts)
        return max(0.0, step.seconds - short) / (step.rows * step.context)


class _Curve:
    """Seconds by size: linear between points and after the last one; never decreasing."""

    def __init__(self, points: Sequence[tuple[float, float]]) -> None:
        self._sizes = np.array([size for size, _ in points], dtype=np.float64)
        self._seconds = np.maximum.accumulate([seconds for _, seconds in points])

    def at(self, size: float) -> float:
        beyond = max(0.0, size - float(self._sizes[-1]))
        return float(np.interp(size, self._sizes, self._seconds)) + beyond * self._slope()

    def _slope(self) -> float:
        """Return the slope between the last two points; with a single point, the slope from
        zero."""
        sizes, seconds = self._sizes[-2:], self._seconds[-2:]
        if len(sizes) == 1:
            return float(seconds[0] / sizes[0])
        return float((seconds[1] - seconds[0]) / (sizes[1] - sizes[0]))
