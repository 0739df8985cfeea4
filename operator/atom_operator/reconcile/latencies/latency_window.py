"""LatencyWindow: the engines' histograms of some minutes ago, so that recent latencies are known.

Engines count since their start. A pass reads them once a minute, and the difference to the reading
of five minutes ago has the latencies that users felt lately. Also notes since when a pod's steps
part from their card's table. Lost with the process: the latencies of the first minutes are then
unknown.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from datetime import datetime

from atom_operator.domain import (
    STEPS_FASTER,
    STEPS_SLOWER,
    EngineOutlook,
    Latencies,
    ObjectKey,
    PartedSteps,
    SeenLatencies,
)
from atom_operator.pods.histograms import added, since

_WINDOW_SECONDS, _LEAST_SECONDS = 300.0, 45.0
_MOST_READINGS = 32

_Reading = tuple[datetime, Mapping[str, EngineOutlook]]


class LatencyWindow:
    """Hold the readings of each AtomDeployment."""

    def __init__(self) -> None:
        self._readings: dict[ObjectKey, deque[_Reading]] = {}
        self._parted: dict[ObjectKey, dict[str, datetime]] = {}

    def look(self, key: ObjectKey, told: Mapping[str, EngineOutlook], now: datetime) -> Latencies:
        """Note the pods' reports, and return them with what came since some minutes ago."""
        readings = self._readings.setdefault(key, deque(maxlen=_MOST_READINGS))
        while len(readings) > 1 and _age(readings[1][0], now) >= _WINDOW_SECONDS:
            readings.popleft()
        seen = None
        if readings and _age(readings[0][0], now) >= _LEAST_SECONDS:
            seen = _seen(readings[0], told, now)
        if not readings or _age(readings[-1][0], now) >= _LEAST_SECONDS:
            readings.append((now, dict(told)))
        return Latencies(
            predicted=tuple(sorted(told.items())),
            seen=seen,
            compared=sum(each.steps_ratio is not None for each in told.values()),
            parted=self._worst(key, told, now),
        )

    def _worst(
        self, key: ObjectKey, told: Mapping[str, EngineOutlook], now: datetime
    ) -> PartedSteps | None:
        ratios = {
            pod: each.steps_ratio
            for pod, each in told.items()
            if each.steps_ratio is not None and not STEPS_FASTER <= each.steps_ratio <= STEPS_SLOWER
        }
        before = self._parted.get(key, {})
        self._parted[key] = {pod: before.get(pod, now) for pod in ratios}
        found = [
            PartedSteps(pod, ratio, _age(self._parted[key][pod], now))
            for pod, ratio in ratios.items()
        ]
        return max(found, key=lambda each: (each.seconds, each.ratio, each.pod), default=None)

    def forget(self, key: ObjectKey) -> None:
        """Forget an AtomDeployment that is gone."""
        self._readings.pop(key, None)
        self._parted.pop(key, None)


def _age(at: datetime, now: datetime) -> float:
    return (now - at).total_seconds()


def _seen(before: _Reading, told: Mapping[str, EngineOutlook], now: datetime) -> SeenLatencies:
    at, old = before
    return SeenLatencies(
        seconds=_age(at, now),
        ttft=added(since(old[pod].ttft if pod in old else (), e.ttft) for pod, e in told.items()),
        itl=added(since(old[pod].itl if pod in old else (), e.itl) for pod, e in told.items()),
    )
