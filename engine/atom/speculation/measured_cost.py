"""MeasuredCost: what steps with drafts and without cost, as timed at start.

Launches, verification and the layers that draft are in it, which a formula can only guess. Steps
are timed on short contexts, which every token of a row reads again as they grow. Pure numpy.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

# Rows, drafts of each, seconds.
Timed = tuple[int, int, float]


class MeasuredCost:
    """timed: steps without drafts and with one of each row, and where drafts are made one after
    the other with several; by ascending rows. attended: seconds for a token of a step and a token
    that it attends to."""

    def __init__(self, timed: Sequence[Timed], attended: float = 0.0) -> None:
        self._attended = attended
        self._plain = _Curve([(rows, seconds) for rows, drafts, seconds in timed if drafts == 0])
        self._drafted = _Curve(
            [(2 * rows, seconds) for rows, drafts, seconds in timed if drafts == 1]
        )
        # From the second draft on a step costs what its tokens do, and what making it takes.
        self._further = _Curve(
            [
                (rows, max(0.0, seconds - self._drafted.at(rows * (1 + drafts))) / (drafts - 1))
                for rows, drafts, seconds in timed
                if drafts > 1
            ]
            or [(1, 0.0)]
        )

    def of_steps(
        self, rows: int, lengths: NDArray[np.float64], context: float = 0.0
    ) -> NDArray[np.float64]:
        """Seconds of steps of so many rows that all carry so many drafts, for each of `lengths`;
        context: tokens that a row attends to."""
        further = self._further.at(rows)
        short = np.array(
            [
                self._drafted.at(rows * (1 + length)) + further * (length - 1)
                if length
                else self._plain.at(rows)
                for length in lengths.tolist()
            ]
        )
        cost: NDArray[np.float64] = short + self._attended * context * rows * (1.0 + lengths)
        return cost


class _Curve:
    """Seconds by size: between points a line, behind the last as before it; never fewer for
    more."""

    def __init__(self, points: Sequence[tuple[float, float]]) -> None:
        self._sizes = np.array([size for size, _ in points], dtype=np.float64)
        self._seconds = np.maximum.accumulate([seconds for _, seconds in points])

    def at(self, size: float) -> float:
        beyond = max(0.0, size - float(self._sizes[-1]))
        return float(np.interp(size, self._sizes, self._seconds)) + beyond * self._slope()

    def _slope(self) -> float:
        """Of the last two points; of one alone as if nothing took no time."""
        sizes, seconds = self._sizes[-2:], self._seconds[-2:]
        if len(sizes) == 1:
            return float(seconds[0] / sizes[0])
        return float((seconds[1] - seconds[0]) / (sizes[1] - sizes[0]))
