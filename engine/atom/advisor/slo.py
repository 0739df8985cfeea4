"""Targets of latency, and the figures that are compared with them. Pure.

Metrics have the names and meaning of `atom bench serve`: ttft until the first token, itl between
two tokens, tpot the mean of a request's, e2el until the last token.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from atom.advisor.errors import AdviceError
from atom.advisor.simulation import Outcome, Served

_EXAMPLE = "ttft=2s,itl=50ms@p90"
_UNITS = {"ms": 1e-3, "s": 1.0}
# The first requests meet an empty server and an empty prefix cache.
_WARM_UP_SHARE = 0.1
PERCENTILES = (50.0, 90.0, 99.0)


class Metric(enum.StrEnum):
    TTFT = "ttft"
    ITL = "itl"
    TPOT = "tpot"
    E2EL = "e2el"


@dataclass(frozen=True, slots=True)
class Miss:
    """A target that is missed: what it is, and how many times the target the figure is."""

    metric: Metric
    seconds: float
    target: float

    @property
    def ratio(self) -> float:
        return self.seconds / self.target

    def __str__(self) -> str:
        return f"{self.metric.value} {self.seconds * 1e3:,.0f} ms of {self.target * 1e3:,.0f}"


@dataclass(frozen=True, slots=True)
class Slo:
    """Most seconds of each metric at a percentile of all requests, or of all gaps."""

    targets: Mapping[Metric, float]
    percentile: float = 90.0

    def misses(self, figures: Figures) -> tuple[Miss, ...]:
        """Return the targets that the figures miss, the worst first."""
        found = (
            Miss(metric, figures.at(metric, self.percentile), target)
            for metric, target in self.targets.items()
        )
        missed = [miss for miss in found if miss.seconds > miss.target]
        return tuple(sorted(missed, key=lambda miss: -miss.ratio))

    def keeps(self, served: Served, longest_gap: float) -> bool:
        """Return whether a request stays within every target; of its gaps the longest counts."""
        felt = {
            Metric.TTFT: served.ttft,
            Metric.ITL: longest_gap,
            Metric.TPOT: served.tpot,
            Metric.E2EL: served.last - served.arrived,
        }
        return all(felt[metric] <= target for metric, target in self.targets.items())

    def __str__(self) -> str:
        parts = (f"{metric.value}={_time(seconds)}" for metric, seconds in self.targets.items())
        return f"{','.join(parts)}@p{self.percentile:g}"


@dataclass(frozen=True, slots=True)
class Reuse:
    """The shares of prompt tokens that the prefix cache had, that a tier in the host's memory had,
    and that files behind it had; and the share of prompts whose pages another engine computed."""

    cached: float
    from_tier: float
    sent: float
    from_files: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The figures of clients, in seconds, without the warm-up. values: of each metric, ascending;
    kept: the share of requests within all targets; request_rate, token_rate: per second, of
    answers; busy: the share of the time in which the device computes; kv_use: the share of blocks
    held on average, and the most; reuse: of KV pages; pods: that were simulated."""

    values: Mapping[Metric, NDArray[np.float64]]
    kept: float
    request_rate: float
    token_rate: float
    busy: float
    kv_use: tuple[float, float]
    reuse: Reuse
    requests: int
    seconds: float
    preemptions: int
    pods: int

    def at(self, metric: Metric, percent: float) -> float:
        """Return a percentile; 0 if no request has the metric, infinity if some did not end."""
        values = self.values[metric]
        if not len(values):
            return 0.0
        position = (len(values) - 1) * percent / 100
        if np.isinf(values[math.ceil(position)]):  # between a number and infinity is nothing
            return float("inf")
        return float(np.percentile(values, percent))


def figures_of(outcome: Outcome, slo: Slo, prompt_tokens: int, pods: int) -> Figures:
    """Sum a simulation up. prompt_tokens: of all its requests; pods: that served them."""
    first = int(len(outcome.served) * _WARM_UP_SHARE)
    served = outcome.served[first:]
    done = [each for each in served if each is not None]
    missing = len(served) - len(done)
    kept = sum(
        each is not None and slo.keeps(each, float(gap))
        for each, gap in zip(served, outcome.longest_gaps[first:], strict=True)
    )
    arrivals = [each.arrived for each in done]
    last = max((each.last for each in done), default=0.0)
    span = max(1e-9, last - min(arrivals, default=0.0))
    tokens = sum(each.output_tokens for each in done)
    values = {
        Metric.TTFT: _sorted([each.ttft for each in done], missing),
        Metric.ITL: np.sort(outcome.gap_seconds),
        Metric.TPOT: _sorted([each.tpot for each in done if each.output_tokens > 1], missing),
        Metric.E2EL: _sorted([each.last - each.arrived for each in done], missing),
    }
    cached = sum(each.cached for each in outcome.served if each is not None)
    return Figures(
        values=values,
        kept=kept / max(1, len(served)),
        request_rate=len(done) / span,
        token_rate=tokens / span,
        busy=min(1.0, outcome.busy_seconds / max(1e-9, outcome.seconds * outcome.engines)),
        kv_use=outcome.kv_use,
        reuse=Reuse(
            cached / max(1, prompt_tokens),
            outcome.moved.tier_tokens / max(1, prompt_tokens),
            outcome.moved.sent / max(1, len(outcome.served)),
            outcome.moved.file_tokens / max(1, prompt_tokens),
        ),
        requests=len(done),
        seconds=outcome.seconds,
        preemptions=outcome.preemptions,
        pods=pods,
    )


def _sorted(values: list[float], missing: int) -> NDArray[np.float64]:
    """Return the values in order; a request that did not end counts as the longest."""
    return np.sort(np.array([*values, *[np.inf] * missing], dtype=np.float64))


def parse_slo(text: str) -> Slo:
    """Read `ttft=2s,itl=50ms@p90`. Raises AdviceError with the part at fault."""
    targets_text, at, percent_text = text.partition("@")
    percentile = _percentile(percent_text) if at else 90.0
    targets: dict[Metric, float] = {}
    for part in targets_text.split(","):
        name, _, value = part.strip().partition("=")
        if name not in set(Metric):
            raise _wrong(part, f"has no known metric; known: {', '.join(Metric)}")
        if Metric(name) in targets:
            raise _wrong(part, "repeats a metric; give each once")
        targets[Metric(name)] = _seconds(part, value)
    return Slo(targets, percentile)


def _percentile(text: str) -> float:
    try:
        value = float(text.removeprefix("p"))
    except ValueError:
        value = 0.0
    if not text.startswith("p") or not 0 < value < 100:
        raise _wrong(f"@{text}", "must be a percentile such as @p90")
    return value


def _seconds(part: str, text: str) -> float:
    for unit, seconds in _UNITS.items():
        number = text.removesuffix(unit)
        if number != text:
            try:
                value = float(number) * seconds
            except ValueError:
                break
            if 0 < value < float("inf"):
                return value
            break
    raise _wrong(part, "must be a time above 0 with its unit, such as 2s or 50ms")


def _wrong(part: str, why: str) -> AdviceError:
    return AdviceError(f"--slo: {part} {why}; write such as {_EXAMPLE}")


def _time(seconds: float) -> str:
    return f"{seconds:g}s" if seconds >= 1 else f"{seconds * 1e3:g}ms"
