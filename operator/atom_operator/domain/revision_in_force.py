"""A revision of the pods together with the plan that it was rendered from."""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class Revisions:
    """Hold the revision that the workload is to run, and the one that serves: they differ until
    the first new pod of a rollout is ready. All that is made beside the pods (Service, route,
    frontends, endpoint picker, thresholds, alerts) is drawn from the one that serves."""

    run: RevisionInForce
    serving: RevisionInForce
    waits: RolloutWait | None = None  # why the workload does not run the spec's pods yet
