"""EnginePort: what engines report of themselves, and the choice of pods to ask.

Requests go to the pods directly and never through the API server. An engine that does not answer is
no error: pods start, stop and lose their network. Called once per reconcile, bounded in requests
and time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from atom_operator.domain import (
    AdapterState,
    Capacity,
    DraftCounts,
    EngineHealth,
    EngineMetrics,
    EngineOutlook,
    EngineView,
    Measured,
    Observed,
    PodState,
    SleepCounts,
)

_MOST_LOADING_PODS = 3
_MOST_ASKED_PODS = 64  # of more the others are taken to do as well
_MOST_DRAFTING_PODS = 8  # a fair sample of the replicas behind one Service


class EnginePort(Protocol):
    """Ask one engine's HTTP server. Every method returns within seconds, None without an answer."""

    async def health(self, address: str) -> EngineHealth | None:
        """Return the state of /health, whether the engine serves or not."""

    async def capacity(self, address: str) -> Capacity | None:
        """Return the capacity of /server_info; None also from an engine that has not started."""

    async def metrics(self, address: str) -> EngineMetrics | None:
        """Return the counts of /metrics: drafts, open requests and the prefix cache."""

    async def adapters(self, address: str) -> tuple[AdapterState, ...] | None:
        """Return the states of the adapters that the engine's file names, by /server_info; None
        also from an engine that follows no file."""


class MetricsReader:
    """Reads the /metrics of each engine once, however many ask: it lives for one pass."""

    def __init__(self, engines: EnginePort) -> None:
        self._engines = engines
        self._read: dict[str, EngineMetrics] = {}

    async def of(self, pods: Sequence[PodState]) -> list[EngineMetrics]:
        """Return the metrics of the pods, in order; each pod must have an address and is asked
        once."""
        addresses = [str(pod.address) for pod in pods]
        new = [address for address in addresses if address not in self._read]
        answers = await asyncio.gather(*map(self._engines.metrics, new))
        self._read |= {a: found or EngineMetrics() for a, found in zip(new, answers, strict=True)}
        return [self._read[address] for address in addresses]


async def ask_engines(
    engines: EnginePort, observed: Observed, known: Measured | None
) -> EngineView:
    """Ask for the capacity of the latest revision, unless `known` is that, and for the pods that do
    not serve yet."""
    revision = observed.deployment.revision if observed.deployment else None
    measured = known if known is not None and known.revision == revision else None
    if measured is None and revision is not None:
        measured = await _measure(engines, observed, revision)
    asked = [pod for pod in _by_name(observed) if not pod.ready and pod.address]
    answers = await asyncio.gather(
        *(engines.health(str(pod.address)) for pod in asked[:_MOST_LOADING_PODS])
    )
    healths = tuple(
        (pod.name, health)
        for pod, health in zip(asked, answers, strict=False)
        if health is not None and health.state != "ok"
    )
    return EngineView(measured, healths)


async def ask_drafts(metrics: MetricsReader, observed: Observed) -> DraftCounts | None:
    """Sum the draft counts over pods of the latest revision; None if none of them reports any."""
    revision = observed.deployment.revision if observed.deployment else None
    asked = [pod for pod in _serving(observed, revision) if pod.serves][:_MOST_DRAFTING_PODS]
    told = [found.drafts for found in await metrics.of(asked) if found.drafts is not None]
    return sum(told[1:], start=told[0]) if told else None


async def ask_sleep(metrics: MetricsReader, observed: Observed) -> SleepCounts | None:
    """Sum the sleep counts over pods that serve; None if none of them reports any."""
    found = await metrics.of(_asked(observed))
    told = [each.sleep for each in found if each.sleep is not None]
    return sum(told[1:], start=told[0]) if told else None


async def ask_outlooks(metrics: MetricsReader, observed: Observed) -> dict[str, EngineOutlook]:
    """Return the predictions of pods that serve, by name."""
    asked = _asked(observed)
    answers = await metrics.of(asked)
    told = zip(asked, answers, strict=True)
    return {pod.name: found.outlook for pod, found in told if found.outlook is not None}


async def ask_adapters(
    engines: EnginePort, observed: Observed
) -> dict[str, tuple[AdapterState, ...] | None]:
    """Return the adapter states of serving pods by name, of every revision, since callers reach all
    of them."""
    asked = _asked(observed)
    answers = await asyncio.gather(*(engines.adapters(str(pod.address)) for pod in asked))
    return {pod.name: answer for pod, answer in zip(asked, answers, strict=True)}


async def _measure(engines: EnginePort, observed: Observed, revision: str) -> Measured | None:
    """Ask the first ready pod of the revision for its capacity; the others have the same plan."""
    for pod in _serving(observed, revision):
        capacity = await engines.capacity(str(pod.address))
        return Measured(revision, capacity) if capacity is not None else None
    return None


def _serving(observed: Observed, revision: str | None) -> list[PodState]:
    """Return the ready pods of a revision that have an address."""
    pods = _by_name(observed)
    return [pod for pod in pods if pod.ready and pod.address and pod.revision == revision]


def _asked(observed: Observed) -> list[PodState]:
    """Return the first pods that serve, of every revision."""
    pods = [pod for pod in _by_name(observed) if pod.ready and pod.serves and pod.address]
    return pods[:_MOST_ASKED_PODS]


def _by_name(observed: Observed) -> list[PodState]:
    return sorted(observed.pods, key=lambda pod: pod.name)
