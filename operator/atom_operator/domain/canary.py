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
class CanarySeen:
    """Hold the observation of a canary, and of a promotion."""

    exists: bool = False
    # Its pods match the request, and are ready: all of them, or one of those that follow the share.
    serves: bool = False
    ready: int = 0  # pods of it that serve
    beside: int = 1  # replicas that can serve all requests without it
    others_roll: bool = False  # the pods beside it are being replaced
    known: bool = False  # to the Gateways, which can send requests to it at once
    hopeless: str | None = None  # why its pods will not become ready
    words: str = ""  # the reason of its wait
    judgement: Judgement | None = None  # None: no analysis is asked for
    blocked: str | None = None  # why it cannot continue before a client changes something
    loads: bool = False  # its pods are being made, within a separate deadline
    pods: str | None = None  # digest of its status's pods, once the status describes these
    rolled_out: bool = False  # the other pods have taken the canary's change
    promotion_failed: str | None = None


@dataclass(frozen=True, slots=True)
class Decided:
    """Keep a decision of spec.canary with the change that it was made for."""

    decision: str
    change: str
    named: str | None = None  # spec.canary.decisionFor as it was then


@dataclass(frozen=True, slots=True)
class CanaryState:
    """Describe how far a canary is; kept in the status."""

    change: str
    phase: CanaryPhase
    step: int = 0  # counted from 0
    weight: int = 0  # percent of the requests that it takes
    since: datetime | None = None  # it takes the step's share; of one that is undone, since then
    failures: int = 0  # looks in a row
    failed_at: datetime | None = None  # the last of them
    fault: str | None = None  # for which it was undone
    words: str = ""  # the reason of its wait, or why it was undone
    waiting_since: datetime | None = None  # for a wait that no person ends
    stalled: bool = False  # it has waited too long, or cannot continue
    pods: str | None = None  # digest of its pods, once its own status speaks of them
    decided: Decided | None = None
    replicas: int | None = None  # pods that it is to have
    ready: int = 0  # of them serve
    beside: int | None = None  # replicas that can serve all requests without it


@dataclass(frozen=True, slots=True)
class Canary:
    """Hold the parts to render of a canary: its AtomDeployment, if it has one, and its share."""

    name: str
    state: CanaryState
    spec: Mapping[str, Any] | None = None
    steps: int = 1
    is_there: bool = False  # its Service is, so that a route may name it
    keeps: int | None = None  # replicas that an autoscaler must leave the others
