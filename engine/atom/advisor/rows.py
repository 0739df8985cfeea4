"""Rows of an answer: each is one way to serve the load, with its figures and their errors.

Values only.
"""

from __future__ import annotations

from dataclasses import dataclass

from atom.advisor.candidates import Candidate
from atom.advisor.question import Lost
from atom.advisor.slo import Figures, Metric, Miss

_SECONDS_AN_HOUR, _MILLION = 3600.0, 1e6


@dataclass(frozen=True, slots=True)
class Range:
    """A figure with both ends of its error."""

    low: float
    middle: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Describe one way to serve the load: `pods` pods with `copies` engines each. slow, fast: the
    figures if steps take as much more, or less, as the rates' error, in rows of the answer; price:
    of a device and hour; goodput: requests per second that all pods serve within the targets;
    curve: (rate, requests per second within the targets), if it was asked for."""

    candidate: Candidate
    pods: int
    copies: int
    figures: Figures
    slow: Figures
    fast: Figures
    misses: tuple[Miss, ...]
    price: float | None = None
    goodput: Range = Range(0.0, 0.0, 0.0)
    curve: tuple[tuple[float, float], ...] = ()

    @property
    def prefills(self) -> int:
        """Return how many of the pods compute prompts for the others."""
        return self.candidate.prefills_of(self.pods)

    @property
    def devices(self) -> int:
        return self.pods * self.copies * self.candidate.ranks

    @property
    def hourly(self) -> float | None:
        """Return the price of an hour of all devices; None if it is unknown."""
        return None if self.price is None else self.price * self.devices

    @property
    def label(self) -> str:
        if self.prefills:
            decodes = self.pods - self.prefills
            return (
                f"{self.candidate.engine_label}, {self.prefills} prefill and {decodes} decode pods"
            )
        copies = f" of {self.copies} engines" if self.copies > 1 else ""
        return f"{self.candidate.label}, {self.pods} pods{copies}"

    @property
    def tokens_per_device(self) -> float:
        """Return the answers' tokens per second of one device."""
        return self.figures.token_rate * self._simulated_pods / self.devices

    @property
    def million_tokens(self) -> float | None:
        """Return the price of a million tokens of answers; None if the device's is unknown."""
        if self.price is None or not self.tokens_per_device:
            return None
        return self.price / _SECONDS_AN_HOUR / self.tokens_per_device * _MILLION

    @property
    def joules_per_token(self) -> float | None:
        """Return the energy of a token at the board's full power; None if that is unknown."""
        watts = self.candidate.card.watts
        return (
            None if watts is None or not self.tokens_per_device else watts / self.tokens_per_device
        )

    @property
    def _simulated_pods(self) -> int:
        """Return how many pods serve as the simulated requests were served by one or by all."""
        return self.pods if self.figures.pods == 1 else 1

    def metric(self, metric: Metric, percent: float) -> Range:
        """Return a latency in seconds."""
        ends = [each.at(metric, percent) for each in (self.fast, self.figures, self.slow)]
        return Range(min(ends), ends[1], max(ends))


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The answer. rows: none of which another one beats, the cheapest first; nearest: if there is
    none, the row that misses least; lost: every other form."""

    rows: tuple[Row, ...]
    nearest: Row | None
    lost: tuple[Lost, ...]
    notes: tuple[str, ...]

    @property
    def chosen(self) -> Row | None:
        return self.rows[0] if self.rows else None

    @property
    def shown(self) -> tuple[Row, ...]:
        """Return the rows, or the nearest one if there are none."""
        return self.rows or ((self.nearest,) if self.nearest is not None else ())
