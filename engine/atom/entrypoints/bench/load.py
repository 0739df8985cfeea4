"""Load: how hard a benchmark presses, with the seed of one run; a sweep is several of these."""

from __future__ import annotations

import argparse
import hashlib
import math
from dataclasses import dataclass

from atom.entrypoints.bench.arrivals import RampUp, arrival_seconds, ramped_seconds
from atom.entrypoints.bench.serve_args import TRACES
from atom.errors import ConfigError

_WARM_UP = "warm-up"


@dataclass(frozen=True, slots=True)
class Load:
    """Requests per second, infinity for all at once, and the most in flight, None for any number.

    is_self_timed: each is sent at the time that its trace has, and the rate does not count.
    label: the run in a sweep, empty for the only one. ramp: the rate grows, and `request_rate` does
    not count."""

    request_rate: float = math.inf
    max_concurrency: int | None = None
    is_self_timed: bool = False
    label: str = ""
    ramp: RampUp | None = None

    def arrivals(self, count: int, burstiness: float, seed: int) -> list[float]:
        """Return the seconds from the start at which each of `count` requests is sent."""
        if self.ramp is not None:
            return ramped_seconds(count, self.ramp, burstiness, seed)
        return arrival_seconds(count, self.request_rate, burstiness, seed)

    @property
    def told_rate(self) -> float | str:
        """Return the rate in a report: JSON has no infinity."""
        if self.is_self_timed:
            return "self-timed"
        return "inf" if math.isinf(self.request_rate) else self.request_rate

    def seed(self, seed: int) -> int:
        """Return the seed of this run's prompts: a different one for each run of a sweep, so that
        no run finds another's prompts in the server's prefix cache."""
        return _derived(seed, self.label) if self.label else seed


def _ramp_of(args: argparse.Namespace) -> RampUp | None:
    """Raises `ConfigError` on an incomplete ramp."""
    strategy, start, end = args.ramp_up_strategy, args.ramp_up_start_rps, args.ramp_up_end_rps
    if strategy is None:
        if start is not None or end is not None:
            raise ConfigError(
                "--ramp-up-start-rps and --ramp-up-end-rps need --ramp-up-strategy linear or "
                "exponential"
            )
        return None
    if start is None or end is None:
        raise ConfigError("--ramp-up-strategy needs --ramp-up-start-rps and --ramp-up-end-rps")
    if not (0 <= start <= end and end > 0) or (strategy == "exponential" and start == 0):
        raise ConfigError(
            f"--ramp-up-start-rps {start:g}, --ramp-up-end-rps {end:g}: a rate grows from 0 or "
            "more (exponential: from above 0) to as much or more"
        )
    return RampUp(strategy, start, end)


def warm_up_seed(seed: int) -> int:
    """Return the seed of prompts that are sent before and not measured."""
    return _derived(seed, _WARM_UP)


def _derived(seed: int, label: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed} {label}".encode()).digest()[:8])


def loads_of(args: argparse.Namespace) -> list[Load]:
    """Return the runs that the flags ask for: one, or one for each value of a list.

    Raises `ConfigError` on flags that exclude each other.
    """
    rates: tuple[float, ...] = args.request_rate or (math.inf,)
    limits: tuple[int | None, ...] = args.max_concurrency or (None,)
    if len(rates) > 1 and len(limits) > 1:
        raise ConfigError(
            "a sweep is over --request-rate or --max-concurrency; give one of them one value"
        )
    if len(rates) > 1 and any(map(math.isinf, rates)):
        raise ConfigError("--request-rate: inf has no place in a sweep's chart; leave it out")
    is_trace = args.dataset_name in TRACES
    if args.self_timed and not is_trace:
        raise ConfigError(f"--self-timed is for {' and '.join(TRACES)}, whose requests have times")
    is_self_timed = is_trace and args.self_timed is not False
    if is_self_timed and args.request_rate:
        raise ConfigError(
            f"--dataset-name {args.dataset_name} has times of its own; add --no-self-timed to "
            f"begin its conversations at --request-rate, or leave the rate out"
        )
    ramp = _ramp_of(args)
    if ramp is not None:
        if args.request_rate or is_self_timed or len(limits) > 1:
            raise ConfigError(
                "--ramp-up-strategy sets the rate of one run; leave out --request-rate, the times "
                "of a trace (--no-self-timed) and further values of --max-concurrency"
            )
        return [Load(max_concurrency=limits[0], ramp=ramp)]
    if len(rates) > 1:
        return [Load(rate, limits[0], label=f"{rate:g} requests/s") for rate in rates]
    if len(limits) > 1:
        return [
            Load(rates[0], limit, is_self_timed, label=f"{limit} in flight") for limit in limits
        ]
    return [Load(rates[0], limits[0], is_self_timed)]
