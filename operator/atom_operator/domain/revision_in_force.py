"""A revision of the pods together with the plan that it was rendered from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from atom_operator.domain.plan import Plan
from atom_operator.domain.rollout_state import PodRevision
from atom_operator.domain.rollout_wait import RolloutWait


@dataclass(frozen=True, slots=True)
class RevisionInForce:
    """Pods, and the plan of the spec that they were made for.

    also_served: names of the model at pods of other revisions, which serve during a rollout.
    """

    pods: PodRevision
    plan: Plan
    also_served: tuple[str, ...] = ()

    @property
    def served_names(self) -> tuple[str, ...]:
        """Return every name by which some pod serves the model, this revision's first."""
        return tuple(dict.fromkeys((self.plan.engine.serving.served_name, *self.also_served)))


class PrefillPhase(StrEnum):
    """Describe how far the prefill pods are."""

    ROLLING = "Rolling"  # they start, or are replaced
    COMPLETE = "Complete"  # all are of their spec, whether or not each is ready
    STOPPED = "Stopped"  # they do not continue before something else changes


@dataclass(frozen=True, slots=True)
class PrefillState:
    """The AtomDeployment of the prefill pods, as its own status reports it.

    spec: as it is stored; goes_with: the digest of the request for decode pods that it was written
    for; words: its most important condition; is_ready: its condition Ready is True; ending: its old
    pods that hold devices until they have ended.
    """

    name: str
    spec: Mapping[str, Any]
    goes_with: str | None
    phase: PrefillPhase
    words: str = ""
    is_ready: bool = False
    replicas: int = 0
    ready_replicas: int = 0
    revision: str | None = None
    ending: int = 0

    def is_ahead(self, decode_digest: str | None) -> bool:
        """Return whether the decode pods, which were written for the request of this digest, are
        to follow these pods."""
        return self.phase is not PrefillPhase.STOPPED and self.goes_with not in (
            None,
            decode_digest,
        )


@dataclass(frozen=True, slots=True)
class Revisions:
    """Hold the revision that the workload is to run, and the one that serves: they differ until
    the first new pod of a rollout is ready. All that is made beside the pods (Service, route,
    frontends, endpoint picker, thresholds, alerts) is drawn from the one that serves."""

    run: RevisionInForce
    serving: RevisionInForce
    waits: RolloutWait | None = None  # why the workload does not run the spec's pods yet
