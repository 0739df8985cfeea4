"""Which latencies a report of `atom bench serve` shows, and what counts as a good request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

METRICS = {
    "ttft": "time to first token",
    "tpot": "time per token after the first",
    "itl": "between pieces of an answer",
    "e2el": "whole answer",
}


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """Options of the report of a serving benchmark. metrics: of METRICS, in this order;
    percentiles: of each, 0 to 100; goodput: metric → the most milliseconds that a good request may
    take."""

    metrics: tuple[str, ...] = tuple(METRICS)
    percentiles: tuple[float, ...] = (50.0, 90.0, 99.0)
    goodput: Mapping[str, float] | None = None
