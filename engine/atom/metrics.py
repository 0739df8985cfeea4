"""Latencies and lengths of requests, counted at the place where they occur, for every token.

These are plain counters without a metrics library: one observation of a library's histogram costs
more than the rest of a token's path through the server. The server's /metrics reads the counters
when it is scraped.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

# fmt: off
FIRST_TOKEN_SECONDS = (
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
QUEUE_SECONDS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0,
    160.0,
)
LENGTH_TOKENS = (
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000,
    200_000,
)
# fmt: on


class Histogram:
    """Counts per bucket. Written by one thread."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)  # the last is above every bound
        self.total = 0.0

    @classmethod
    def of(cls, bounds: Sequence[float], counts: Sequence[int], total: float) -> Histogram:
        """Build a histogram with these observations. Raises `ValueError` if their shapes do not
        match."""
        made = cls(bounds)
        if len(counts) != len(made.counts):
            raise ValueError(f"{len(counts)} counts for {len(made.counts)} buckets")
        made.counts, made.total = list(counts), total
        return made

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def cumulative(self) -> list[tuple[float, int]]:
        """List (upper bound, observations at most that large) pairs, ending with infinity."""
        pairs, so_far = [], 0
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            so_far += count
            pairs.append((bound, so_far))
        return pairs


# Why an answer continues elsewhere: its process ended without notice, or was asked to end.
LOST, HANDED_OVER = "lost", "handed_over"
REASON_SEPARATOR = ";"  # between a decode leg's result and its reason


def _seconds_to_pages() -> Histogram:
    return Histogram(FIRST_TOKEN_SECONDS)


@dataclass(frozen=True, slots=True)
class TransferMetrics:
    """Decode legs of one server's requests. legs: their number by "result;reason". tokens: under
    "received". wait, handshake, copy: seconds of the legs that received KV pages."""

    legs: dict[str, int] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=dict)
    wait: Histogram = field(default_factory=_seconds_to_pages)
    handshake: Histogram = field(default_factory=_seconds_to_pages)
    copy: Histogram = field(default_factory=_seconds_to_pages)

    def record(self, outcome: tuple[str, str], tokens: int, seconds: Sequence[float]) -> None:
        """Count a decode leg. outcome: its result and the reason; seconds: of the whole wait, the
        handshake and the copy; empty if it waited for no pages."""
        key = REASON_SEPARATOR.join(outcome)
        self.legs[key] = self.legs.get(key, 0) + 1
        if tokens:
            self.tokens["received"] = self.tokens.get("received", 0) + tokens
        for histogram, value in zip((self.wait, self.handshake, self.copy), seconds, strict=False):
            histogram.observe(value)


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """Waiting times and lengths of one server's requests, recorded by the output processor. queue:
    seconds from arrival to the step that began with the prompt."""

    time_to_first_token: Histogram = field(default_factory=lambda: Histogram(FIRST_TOKEN_SECONDS))
    inter_token: Histogram = field(default_factory=lambda: Histogram(INTER_TOKEN_SECONDS))
    end_to_end: Histogram = field(default_factory=lambda: Histogram(END_TO_END_SECONDS))
    queue: Histogram = field(default_factory=lambda: Histogram(QUEUE_SECONDS))
    prompt_tokens: Histogram = field(default_factory=lambda: Histogram(LENGTH_TOKENS))
    output_tokens: Histogram = field(default_factory=lambda: Histogram(LENGTH_TOKENS))
    finished: dict[str, int] = field(default_factory=dict)  # finish reason → requests
    continued: dict[str, int] = field(default_factory=dict)  # why → requests, each time one is
    transfers: TransferMetrics = field(default_factory=TransferMetrics)

    def record_continued(self, *, lost: bool) -> None:
        cause = LOST if lost else HANDED_OVER
        self.continued[cause] = self.continued.get(cause, 0) + 1

    def record_end(self, reason: str, prompt_tokens: int, output_tokens: int) -> None:
        self.finished[reason] = self.finished.get(reason, 0) + 1
        self.prompt_tokens.observe(prompt_tokens)
        self.output_tokens.observe(output_tokens)


def merge_metrics(parts: Sequence[RequestMetrics]) -> RequestMetrics:
    """Return the sum of several processes' metrics."""
    merged = RequestMetrics()
    for part in parts:
        _add_fields(merged, part)
    return merged


def _add_fields(total: Any, part: Any) -> None:
    for name in (each.name for each in fields(total)):
        _add(getattr(total, name), getattr(part, name))


def _add(total: _Figures, part: _Figures) -> None:
    if isinstance(total, Histogram) and isinstance(part, Histogram):
        total.counts = [ours + more for ours, more in zip(total.counts, part.counts, strict=True)]
        total.total += part.total
    elif isinstance(total, dict) and isinstance(part, dict):
        for reason, count in part.items():
            total[reason] = total.get(reason, 0) + count
    else:
        _add_fields(total, part)


_Figures = Histogram | dict[str, int] | TransferMetrics
