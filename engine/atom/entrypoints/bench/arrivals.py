"""When the requests of a benchmark arrive: all at once, or at a rate with more or less burstiness.

Pure. Gaps are drawn from a gamma distribution, as other serving benchmarks do: burstiness 1 is a
Poisson process, less comes in bursts, more comes evenly. Used by `atom bench serve`.
"""

from __future__ import annotations

import itertools
import math
import random


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
