"""A line chart as values: what is drawn, and where an axis has its marks."""

from __future__ import annotations

import math
from dataclasses import dataclass

_LEAST = 1e-9  # below it nothing is to be seen, and marks would not differ


@dataclass(frozen=True, slots=True)
class Series:
    """A line. points: (x, y) with rising x; is_reference: drawn thin, for comparison only."""

    name: str
    points: tuple[tuple[float, float], ...]
    is_reference: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines over one pair of axes that begin at zero. The first one is in front."""

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]

    @property
    def most_x(self) -> float:
        return ticks(max(x for line in self.series for x, _ in line.points))[-1]

    @property
    def most_y(self) -> float:
        """Find the last mark of the y axis. Lines for comparison may leave the picture."""
        most = max(y for line in self.series if not line.is_reference for _, y in line.points)
        return ticks(most)[-1]


def ticks(most: float, wanted: int = 5) -> list[float]:
    """Return the marks from 0 to the first that is at least `most`, in steps of 1, 2 or 5 times a
    power of ten."""
    if most < _LEAST:
        return [0.0, 1.0]
    rough = most / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * part for part in (1, 2, 5, 10) if power * part >= rough * (1 - 1e-9))
    count = math.ceil(most / step * (1 - 1e-9))
    return [round(step * index, 12) for index in range(count + 1)]
