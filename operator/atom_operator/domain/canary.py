"""A canary: the request for it, its observation, and its progress."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal


class CanaryPhase(StrEnum):
    """Describe how far a canary is; named as in the status."""

    STARTING = "Starting"  # it takes no requests yet, or no more
    STEPPING = "Stepping"
    HELD = "Held"  # by a person
    WAITING = "AwaitingPromotion"
    PROMOTING = "Promoting"
    PROMOTED = "Promoted"
    UNDONE = "Undone"


@dataclass(frozen=True, slots=True)
class CanaryStep:
    """A share in percent, and how long it is tried; None: until a person decides."""

    weight: int
    seconds: int | None


@dataclass(frozen=True, slots=True)
class CanaryQuery:
    """A query of Prometheus, and the bounds of its value."""

    name: str
    query: str
    least: float | None
    most: float | None


@dataclass(frozen=True, slots=True)
class CanaryAnalysis:
    """Hold the bounds by which a canary is judged."""

    most_errors_percent: int | None
    most_first_token_milliseconds: int | None
    min_requests: int
    queries: tuple[CanaryQuery, ...]
    interval_seconds: int
    failures: int


@dataclass(frozen=True, slots=True)
class CanaryAsked:
    """Hold the spec's request for a canary, with defaults."""

    change: str  # digest of the partial spec
    steps: tuple[CanaryStep, ...]
    decision: Literal["Promote", "Undo", "Hold"] | None
    analysis: CanaryAnalysis | None
    decision_for: str | None = None  # the change that the decision names
    replicas: int | None = None  # its pods; None: derived from its share


@dataclass(frozen=True, slots=True)
class Judgement:
    """Hold an analysis's verdict on a canary; `passes` None: undecided."""

    passes: bool | None
    words: str


@dataclass(frozen=True, slots=True)
class PodsSeen:
    """Hold the observation of a canary's own pods."""

    # They match the request, and are ready: all of them, or one of those that follow the share.
    serve: bool = False
    ready: int = 0  # of them serve
    load: bool = False  # they are being made, within a separate deadline
    digest: str | None = None  # of its status's pods, once the status describes these


@dataclass(frozen=True, slots=True)
class OthersSeen:
    """Hold the observation of the pods beside a canary, and of its promotion to them."""

    can_serve: int = 1  # replicas that can serve all requests without the canary
    roll: bool = False  # they are being replaced
    rolled_out: bool = False  # they have taken the canary's change
    promotion_failed: str | None = None


@dataclass(frozen=True, slots=True)
class CanarySeen:
    """Hold the observation of a canary."""

    exists: bool = False
    known: bool = False  # to the Gateways, which can send requests to it at once
    pods: PodsSeen = PodsSeen()
    others: OthersSeen = OthersSeen()
    hopeless: str | None = None  # why its pods will not become ready
    blocked: str | None = None  # why it cannot continue before a client changes something
    words: str = ""  # the reason of its wait
    judgement: Judgement | None = None  # None: no analysis is asked for


@dataclass(frozen=True, slots=True)
class Decided:
    """Keep a decision of spec.canary with the change that it was made for."""

    decision: str
    change: str
    named: str | None = None  # spec.canary.decisionFor as it was then


@dataclass(frozen=True, slots=True)
class FailingChecks:
    """Count the checks of the analysis that failed in a row."""

    count: int = 0
    last: datetime | None = None


@dataclass(frozen=True, slots=True)
class CanaryWait:
    """Describe the wait of a canary. words: its reason, or why the canary was undone."""

    words: str = ""
    since: datetime | None = None  # of a wait that no person ends
    stalled: bool = False  # it has lasted too long, or the canary cannot continue


@dataclass(frozen=True, slots=True)
class CanaryPods:
    """Count the pods of a canary, and the replicas beside it."""

    digest: str | None = None  # of its pods, once its own status speaks of them
    asked: int | None = None  # that it is to have
    ready: int = 0  # of them serve
    beside: int | None = None  # replicas that can serve all requests without it


@dataclass(frozen=True, slots=True)
class CanaryState:
    """Describe how far a canary is; kept in the status."""

    change: str
    phase: CanaryPhase
    step: int = 0  # counted from 0
    weight: int = 0  # percent of the requests that it takes
    since: datetime | None = None  # it takes the step's share; of one that is undone, since then
    failing: FailingChecks = FailingChecks()
    fault: str | None = None  # for which it was undone
    wait: CanaryWait = CanaryWait()
    pods: CanaryPods = CanaryPods()
    decided: Decided | None = None


@dataclass(frozen=True, slots=True)
class Canary:
    """Hold the parts to render of a canary: its AtomDeployment, if it has one, and its share."""

    name: str
    state: CanaryState
    spec: Mapping[str, Any] | None = None
    steps: int = 1
    is_there: bool = False  # its Service is, so that a route may name it
    keeps: int | None = None  # replicas that an autoscaler must leave the others
