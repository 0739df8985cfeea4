"""Latencies of requests, counted where they happen, cheap enough for every token.

Plain counters without a metrics library, since a library's histogram costs more per observation
than the rest of a token's way through the server. The server's /metrics reads them on a scrape.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

# fmt: off
TIME_TO_FIRST_TOKEN_SECONDS = (
    0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0, 160.0,
)
INTER_TOKEN_SECONDS = (
    0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15,
    0.2, 0.3, 0.5, 1.0, 2.5,
)
END_TO_END_SECONDS = (
    0.1, 0.25, 0.5, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0,
    240.0, 480.0, 960.0,
)
# fmt: on


class LatencyHistogram:
    """Counts per bucket of seconds. Written by one thread."""

    __slots__ = ("bounds_seconds", "counts", "total_seconds")

    def __init__(self, bounds_seconds: Sequence[float]) -> None:
        self.bounds_seconds = tuple(bounds_seconds)
        self.counts = [0] * (len(self.bounds_seconds) + 1)  # the last is above every bound
        self.total_seconds = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(self.bounds_seconds, seconds)] += 1
        self.total_seconds += seconds

    def cumulative(self) -> list[tuple[float, int]]:
        """(upper bound, observations at most that large) pairs, ending with infinity."""
        pairs, so_far = [], 0
        bounds = (*self.bounds_seconds, float("inf"))
        for bound, count in zip(bounds, self.counts, strict=True):
            so_far += count
            pairs.append((bound, so_far))
        return pairs


@dataclass(frozen=True, slots=True)
class RequestLatencies:
    """What one server's requests waited for; recorded by the output processor."""

    time_to_first_token: LatencyHistogram = field(
        default_factory=lambda: LatencyHistogram(TIME_TO_FIRST_TOKEN_SECONDS)
    )
    inter_token: LatencyHistogram = field(
        default_factory=lambda: LatencyHistogram(INTER_TOKEN_SECONDS)
    )
    end_to_end: LatencyHistogram = field(
        default_factory=lambda: LatencyHistogram(END_TO_END_SECONDS)
    )
    finished: dict[str, int] = field(default_factory=dict)  # finish reason → requests

    def count_finished(self, reason: str) -> None:
        self.finished[reason] = self.finished.get(reason, 0) + 1
