"""What the engines themselves say: EnginePort, and which pods are asked what.

Direct to the pods and never through the API server. An engine that does not answer is no error:
pods start, stop and lose their network. Called once per reconcile, bounded in requests and time.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from atom_operator.domain import Capacity, EngineHealth, EngineView, Measured, Observed, PodState

_MOST_LOADING_PODS = 3


class EnginePort(Protocol):
    """One engine's HTTP server. Both methods return within seconds, None without an answer."""

    async def health(self, address: str) -> EngineHealth | None:
        """What /health says, whether it serves or not."""

    async def capacity(self, address: str) -> Capacity | None:
        """What /server_info says; None also from an engine that has not started."""


async def ask_engines(
    engines: EnginePort, observed: Observed, known: Measured | None
) -> EngineView:
    """The capacity of the latest revision, unless `known` is that, and who does not serve yet."""
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


async def _measure(engines: EnginePort, observed: Observed, revision: str) -> Measured | None:
    """By the first ready pod of the revision; the others have the same plan."""
    for pod in _by_name(observed):
        if pod.ready and pod.address and pod.revision == revision:
            capacity = await engines.capacity(pod.address)
            return Measured(revision, capacity) if capacity is not None else None
    return None


def _by_name(observed: Observed) -> list[PodState]:
    return sorted(observed.pods, key=lambda pod: pod.name)
