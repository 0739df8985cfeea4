"""FakeEngines: an in-memory EnginePort; engines by address, `asked` is the log of requests."""

from __future__ import annotations

from dataclasses import dataclass, field

from atom_operator.domain import (
    AdapterState,
    Capacity,
    DraftCounts,
    EngineHealth,
    EngineLoad,
    EngineMetrics,
    EngineOutlook,
    RequestCounts,
    SleepCounts,
)


@dataclass
class FakeEngines:
    """An address without an entry does not answer."""

    healths: dict[str, EngineHealth] = field(default_factory=dict)
    capacities: dict[str, Capacity] = field(default_factory=dict)
    counts: dict[str, DraftCounts] = field(default_factory=dict)
    loads: dict[str, EngineLoad] = field(default_factory=dict)
    adapted: dict[str, tuple[AdapterState, ...]] = field(default_factory=dict)
    requests: dict[str, RequestCounts] = field(default_factory=dict)
    sleeps: dict[str, SleepCounts] = field(default_factory=dict)
    outlooks: dict[str, EngineOutlook] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    async def health(self, address: str) -> EngineHealth | None:
        self.asked.append(f"{address}/health")
        return self.healths.get(address)

    async def capacity(self, address: str) -> Capacity | None:
        self.asked.append(f"{address}/server_info")
        return self.capacities.get(address)

    async def metrics(self, address: str) -> EngineMetrics | None:
        self.asked.append(f"{address}/metrics")
        requests, sleep = self.requests.get(address), self.sleeps.get(address)
        return EngineMetrics(
            self.counts.get(address),
            self.loads.get(address),
            requests,
            sleep,
            self.outlooks.get(address),
        )

    async def adapters(self, address: str) -> tuple[AdapterState, ...] | None:
        self.asked.append(f"{address}/server_info")
        return self.adapted.get(address)
