"""The pods that run, their replacement of others, and the fate of failed ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from atom_operator.domain.objects import Manifest
from atom_operator.domain.spec_record import SpecRecord


class RolloutStrategy(StrEnum):
    """Describe how a Deployment replaces pods."""

    SURGE = "Surge"  # a spare pod first, then an old one goes
    IN_PLACE = "InPlace"  # one old pod goes, then a new one takes its devices
    RECREATE = "Recreate"  # all old pods go first


@dataclass(frozen=True, slots=True)
class Rollout:
    """The strategy of one rollout, and why it was chosen."""

    strategy: RolloutStrategy
    reason: str
    unavailable: int = 1  # pods that may be away at a time, in place
    asked_at: datetime | None = None  # when the revision was first asked for; None if unknown
    # Replicas that had a place when the revision was first asked for; None: not counted.
    had_place: int | None = None
    surplus: int = 0  # pods beyond the replicas while the controller learns of a smaller number


@dataclass(frozen=True, slots=True)
class PodRevision:
    """A finished pod template under the name that its hash gave it."""

    name: str
    template: Manifest
    spec_digest: str | None = None  # of the spec that it was made for; None from older operators
    nodes: int = 1  # pods of a replica: of more than one a group


@dataclass(frozen=True, slots=True)
class Rollback:
    """Record a revision that could not become ready and runs no more, and its fault."""

    failed: str
    cause: str


@dataclass(frozen=True, slots=True)
class Target:
    """Hold the pods to run, the pods to remember as ready, and the reason if they are not the
    spec's. specs: of other pods that may serve, to be remembered, by revision."""

    pods: PodRevision
    last_ready: PodRevision | None = None
    rollback: Rollback | None = None
    specs: Mapping[str, SpecRecord] = field(default_factory=dict)
