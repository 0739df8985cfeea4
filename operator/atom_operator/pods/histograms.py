"""Histograms of latencies that engines report: quantiles, sums, and differences. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from atom_operator.domain import Buckets


def quantile(buckets: Buckets, share: float) -> float | None:
    """Return a quantile of a histogram, evenly within a bucket; None without observations. Beyond
    the last finite bound that bound."""
    total = buckets[-1][1] if buckets else 0.0
    if total <= 0:
        return None
    wanted, below, before = share * total, 0.0, 0.0
    for bound, count in buckets:
        if count >= wanted:
            if bound == float("inf"):
                return below
            part = (wanted - before) / (count - before) if count > before else 1.0
            return below + part * (bound - below)
        below, before = bound, count
    return below


def added(parts: Iterable[Buckets]) -> Buckets:
    """Add histograms of equal bounds up; those with other bounds than the first are left out."""
    found = [part for part in parts if part]
    if not found:
        return ()
    bounds = [bound for bound, _ in found[0]]
    alike = [part for part in found if [bound for bound, _ in part] == bounds]
    return tuple((bound, sum(part[at][1] for part in alike)) for at, bound in enumerate(bounds))


def since(before: Buckets, now: Buckets) -> Buckets:
    """Return the observations after `before`; all of `now` if the engine began again meanwhile."""
    counts = dict(before)
    if any(count < counts.get(bound, 0.0) for bound, count in now):
        return now
    return tuple((bound, count - counts.get(bound, 0.0)) for bound, count in now)
