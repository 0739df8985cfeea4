"""MeasuredCost: what steps with drafts and without cost, as timed at start.

Launches, verification and the layers that draft are in it, which a formula can only guess; what
long contexts cost is not: the steps are timed on short ones. Pure numpy.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

# Rows, drafts of each, seconds.
Timed = tuple[int, int, float]


class MeasuredCost:
    """timed: steps without drafts and with one of each row, and where drafts are made one after
    the other with several; by ascending rows."""

    def __init__(self, timed: Sequence[Timed]) -> None:
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

    def of_steps(self, rows: int, lengths: NDArray[np.float64]) -> NDArray[np.float64]:
        """Seconds of steps of so many rows that all carry so many drafts, for each of `lengths`."""
        further = self._further.at(rows)
        return np.array(
            [
                self._drafted.at(rows * (1 + length)) + further * (length - 1)
                if length
                else self._plain.at(rows)
                for length in lengths.tolist()
            ]
        )


class _Curve:
    """Seconds by size: between points a line, behind the last in proportion; never fewer for
    more."""

    def __init__(self, points: Sequence[tuple[float, float]]) -> None:
        self._sizes = np.array([size for size, _ in points], dtype=np.float64)
        self._seconds = np.maximum.accumulate([seconds for _, seconds in points])

    def at(self, size: float) -> float:
        beyond = max(1.0, size / float(self._sizes[-1]))
        return beyond * float(np.interp(size, self._sizes, self._seconds))
