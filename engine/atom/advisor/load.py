"""Loads: the requests of a simulation, drawn from a rate and lengths, or read from a trace. Pure.

Arrivals are a Poisson process. `prefix` is the share of a prompt that it has in common with other
prompts: each request begins with one of `prefixes` texts, which differ from each other.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Protocol

import numpy as np

from atom.advisor.errors import AdviceError
from atom.advisor.simulation import Due, Load

_LARGEST_TOKEN = 2**31 - 1  # of a simulated prompt: the vocabulary does not matter
_LEAST_REQUESTS, _MOST_REQUESTS, _SIMULATED_SECONDS = 100, 200, 60.0
_EXAMPLE = "rate=3/s,in=4000,out=500,prefix=0.6"


class Countable(Load, Protocol):
    """A load with the number of its prompts' tokens."""

    @property
    def prompt_tokens(self) -> int: ...


class Demand(Protocol):
    """The load of a question. rate: requests per second, on average; longest: tokens of the longest
    request; computed_tokens: of a prompt that no cache has, on average; notes: about what a
    simulation of it can show."""

    @property
    def rate(self) -> float: ...
    @property
    def input_tokens(self) -> float: ...
    @property
    def output_tokens(self) -> float: ...
    @property
    def computed_tokens(self) -> float: ...
    @property
    def longest(self) -> int: ...
    @property
    def notes(self) -> tuple[str, ...]: ...

    def share(self, pods: int, scale: float) -> tuple[Countable, int]:
        """Return the requests that have to be simulated for so many pods, and how many of the pods
        serve them. scale: multiplies the rate."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLoad:
    """Requests at a rate. rate: per second; input_tokens, output_tokens: of each, on average;
    spread: the share by which lengths differ, evenly both ways; prefix: the share of a prompt that
    is one of `prefixes` common beginnings."""

    rate: float
    input_tokens: int
    output_tokens: int
    prefix: float = 0.0
    prefixes: int = 8
    spread: float = 0.0

    @property
    def longest(self) -> int:
        """Return the tokens of the longest request, answer included."""
        return sum(_most(tokens, self.spread) for tokens in (self.input_tokens, self.output_tokens))

    @property
    def computed_tokens(self) -> float:
        """Return the prompt tokens of a request that no cache has."""
        return self.input_tokens * (1.0 - self.prefix)

    @property
    def notes(self) -> tuple[str, ...]:
        return ()

    def share(self, pods: int, scale: float) -> tuple[Countable, int]:
        """Return the requests of one pod: a Service divides Poisson arrivals into such."""
        rate = self.rate * scale / pods
        count = min(_MOST_REQUESTS, max(_LEAST_REQUESTS, round(_SIMULATED_SECONDS * rate)))
        return DrawnLoad(self, count, rate), 1


class DrawnLoad:
    """Implements Load for a rate."""

    def __init__(self, load: RateLoad, count: int, rate: float, seed: int = 0) -> None:
        """seed: the same one gives the same requests, and arrivals that differ by the ratio of the
        rates alone."""
        source = random.Random(seed)
        gaps = [source.expovariate(1.0) / rate for _ in range(count)]
        self.dues: Sequence[Due] = [Due(at) for at in itertools.accumulate(gaps)]
        spread = load.spread
        factors = [(1.0 + source.uniform(-spread, spread)) for _ in range(2 * count)]
        self._inputs = [max(1, round(load.input_tokens * each)) for each in factors[:count]]
        self._outputs = [max(1, round(load.output_tokens * each)) for each in factors[count:]]
        self._load = load
        self._seed = seed

    def prompt(self, place: int) -> list[int]:
        """Make a prompt: a common beginning, then tokens that no other prompt has."""
        count = self._inputs[place]
        shared = int(count * self._load.prefix)
        beginning = self._tokens((1, place % self._load.prefixes), shared)
        return beginning + self._tokens((2, place), count - shared)

    def output_tokens(self, place: int) -> int:
        return self._outputs[place]

    @property
    def prompt_tokens(self) -> int:
        return sum(self._inputs)

    def _tokens(self, key: tuple[int, int], count: int) -> list[int]:
        if not count:
            return []
        draw = np.random.default_rng((self._seed, *key))
        return draw.integers(_LARGEST_TOKEN, size=count).tolist()  # type: ignore[no-any-return]


def parse_load(text: str) -> RateLoad:
    """Read `rate=3/s,in=4000,out=500,prefix=0.6`. Raises AdviceError with the part at fault."""
    values: dict[str, str] = {}
    for part in text.split(","):
        name, equals, value = part.strip().partition("=")
        if not equals or name in values:
            raise _wrong(part, "must be NAME=VALUE, each name once")
        values[name] = value
    names = {"rate": "rate", "in": "input_tokens", "out": "output_tokens"}
    names |= {each.name: each.name for each in fields(RateLoad)[3:]}
    for name in values:
        if name not in names:
            raise _wrong(name, f"is not known; known: {', '.join(names)}")
    for name in ("rate", "in", "out"):
        if name not in values:
            raise _wrong(name, "is missing")
    return RateLoad(
        rate=_rate(values["rate"]),
        input_tokens=_whole("in", values["in"]),
        output_tokens=_whole("out", values["out"]),
        prefix=_share("prefix", values.get("prefix", "0")),
        prefixes=_whole("prefixes", values.get("prefixes", "8")),
        spread=_share("spread", values.get("spread", "0")),
    )


def _most(tokens: int, spread: float) -> int:
    return int(tokens * (1.0 + spread) + 0.5)


_SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0}


def _rate(text: str) -> float:
    number, _, unit = text.partition("/")
    try:
        rate = float(number) / _SECONDS[unit or "s"]
    except (ValueError, KeyError):
        rate = 0.0
    if not 0 < rate < float("inf"):
        raise _wrong(f"rate={text}", "must be requests such as 3/s, 90/min or 4000/h, above 0")
    return rate


def _whole(name: str, text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise _wrong(f"{name}={text}", "must be a whole number from 1")
    return int(text)


def _share(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise _wrong(f"{name}={text}", "must be at least 0 and below 1")
    return value


def _wrong(part: str, why: str) -> AdviceError:
    return AdviceError(f"--load: {part} {why}; write such as {_EXAMPLE}")
