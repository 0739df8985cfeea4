"""When the requests of a benchmark arrive: all at once, or at a rate with more or less burstiness.

Pure. Gaps are drawn from a gamma distribution, as other serving benchmarks do: burstiness 1 is a
Poisson process, less comes in bursts, more comes evenly. Used by `atom bench serve`.
"""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class RampUp:
    """Let the rate grow over a run, in requests per second, from `start` to `end`."""

    strategy: Literal["linear", "exponential"]
    start: float
    end: float

    def rate(self, progress: float) -> float:
        """Return the rate at a share of the run's requests, 0 to 1."""
        if self.strategy == "linear":
            return self.start + (self.end - self.start) * progress
        return float(self.start * (self.end / self.start) ** progress)


def ramped_seconds(count: int, ramp: RampUp, burstiness: float, seed: int) -> list[float]:
    """Return the seconds from the start at which each of `count` requests is sent, the first at 0,
    while the rate grows. A gap has the rate in the middle between its two requests."""
    if count < 2:
        return [0.0] * count
    source, last = random.Random(seed), count - 1
    gaps = (
        source.gammavariate(burstiness, 1.0) / burstiness / ramp.rate((index + 0.5) / last)
        for index in range(last)
    )
    return [0.0, *itertools.accumulate(gaps)]


def arrival_seconds(count: int, rate: float, burstiness: float, seed: int) -> list[float]:
    """Seconds from the start at which each of `count` requests is sent; the first at 0.

    rate: requests per second, infinity for all at once. The gaps are scaled so that the last
    request comes when the rate says, whatever was drawn."""
    if math.isinf(rate) or count < 2:
        return [0.0] * count
    source = random.Random(seed)
    gaps = [source.gammavariate(burstiness, 1.0) for _ in range(count - 1)]
    drawn = math.fsum(gaps)
    scale = (count - 1) / rate / drawn if drawn else 0.0
    return [0.0, *itertools.accumulate(gap * scale for gap in gaps)]
