"""Engines' and downloads' reports of themselves over HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from atom_operator.domain.replica_capacity import Capacity


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """Describe how far a start-up or a download is. Rates are of its present phase."""

    phase: str
    fraction: float
    bytes_total: int | None = None
    bytes_per_second: int | None = None
    seconds_without_progress: float = 0.0
    stalled: bool = False  # by the rules of the process that reports it


@dataclass(frozen=True, slots=True)
class EngineHealth:
    """Hold the answer of /health. `state` is ok, starting, draining or dead; `reason` is for
    people."""

    state: str
    reason: str
    progress: LoadProgress | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """The capacity that the engine of one revision reported."""

    revision: str
    capacity: Capacity


@dataclass(frozen=True, slots=True)
class DraftCounts:
    """Count an engine's drafts since it began."""

    drafts: int  # times that a request carried any in a step
    tokens: int  # that they had
    accepted: int  # of these

    def __add__(self, other: DraftCounts) -> DraftCounts:
        return DraftCounts(
            self.drafts + other.drafts, self.tokens + other.tokens, self.accepted + other.accepted
        )


@dataclass(frozen=True, slots=True)
class SleepCounts:
    """Hold how engines sleep."""

    asleep: int  # engines that do now
    wakes: int  # times that a request woke one up, since each of them began

    def __add__(self, other: SleepCounts) -> SleepCounts:
        return SleepCounts(self.asleep + other.asleep, self.wakes + other.wakes)


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """Hold an engine's open work, and the cache that would be lost with it."""

    open_requests: int  # that run or wait
    cached_tokens: int  # that its prefix cache can find


@dataclass(frozen=True, slots=True)
class RequestCounts:
    """Count an engine's ended requests since it began, without those whose client left."""

    ended: int
    failed: int  # of these, with an error
    first_tokens: int = 0  # requests that had one
    first_token_seconds: float = 0.0  # of all these together


# Steps that part from the card's table by a third, either way.
STEPS_SLOWER, STEPS_FASTER = 4 / 3, 3 / 4

# Upper bounds in seconds, the last one infinity, and how many observations are at most that large.
Buckets = tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class EngineOutlook:
    """Describe an engine's predictions, in seconds. limit: the resource that a first token waits
    for; steps_ratio: of the last minute's steps to those of the card's table, None without one;
    ttft, itl: latencies of its requests since it began."""

    ttft_seconds: float
    itl_seconds: float
    limit: str
    steps_ratio: float | None
    ttft: Buckets
    itl: Buckets


@dataclass(frozen=True, slots=True)
class SeenLatencies:
    """Hold the latencies of all pods' requests over some seconds."""

    seconds: float
    ttft: Buckets
    itl: Buckets


@dataclass(frozen=True, slots=True)
class PartedSteps:
    """Name the pod whose steps part most from the card's table, and since how many seconds."""

    pod: str
    ratio: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Latencies:
    """Hold the reports of the pods that serve. predicted: by pod; compared: pods whose steps have a
    table; parted: None while no pod's steps part from it."""

    predicted: tuple[tuple[str, EngineOutlook], ...] = ()
    seen: SeenLatencies | None = None
    compared: int = 0
    parted: PartedSteps | None = None


@dataclass(frozen=True, slots=True)
class EngineMetrics:
    """Hold an engine's counters, each None if it does not report them."""

    drafts: DraftCounts | None = None
    load: EngineLoad | None = None
    requests: RequestCounts | None = None
    sleep: SleepCounts | None = None
    outlook: EngineOutlook | None = None


@dataclass(frozen=True, slots=True)
class AdapterState:
    """Hold an engine's report of an adapter that its file names. `state` is loaded, loading or
    refused."""

    name: str
    path: str
    state: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class EngineView:
    """Hold the engines' own reports; empty if none answers."""

    measured: Measured | None = None
    not_serving: tuple[tuple[str, EngineHealth], ...] = ()  # by pod, in the order of their names
    drafts: DraftCounts | None = None  # of the pods of the latest revision, if it speculates
    sleep: SleepCounts | None = None  # of the pods that serve, if they sleep when they are idle
    latencies: Latencies | None = None  # of the pods that serve, if they have targets
    # By pod that serves; None of one that does not report.
    adapters: Mapping[str, tuple[AdapterState, ...] | None] = field(default_factory=dict)

    @property
    def words(self) -> str:
        """Return the state and reason of the first engine that does not serve; "" if all serve."""
        return next((f"{health.state}: {health.reason}" for _, health in self.not_serving), "")

    def of(self, revision: str | None) -> EngineView:
        """Leave out a measurement that belongs to another revision."""
        if self.measured is None or self.measured.revision == revision:
            return self
        return replace(self, measured=None)
