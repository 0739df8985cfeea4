"""The last plans of each AtomDeployment: most looks find the spec and its surroundings unchanged.

Planning is pure and a third of a look's processor time. A plan is used again only if each of its
inputs is equal to those that it was made from; nodes and devices have to be the same reading, since
comparing thousands of them costs more than a plan. Called by Decider.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from atom_operator.api.v1alpha1 import AtomDeploymentSpec
from atom_operator.domain import FieldProblem, ObjectKey, Owner, Plan
from atom_operator.reconcile.planning import SpecLayers, Surroundings, plan_in_force, plan_spec

Planned = Plan | tuple[FieldProblem, ...]
# Of the newest spec a plan before and one after the model is known; as many of specs in force.
_OF_ONE = 4


@dataclass(frozen=True, slots=True)
class _Made:
    """Hold a plan with its inputs; `words`: the specs, and the image of one in force; `around`: the
    rest, without the readings."""

    owner: Owner
    words: tuple[str, ...]
    around: Surroundings
    readings: tuple[Any, ...]
    planned: Planned | None

    def is_of(self, other: _Made) -> bool:
        same = all(one is two for one, two in zip(self.readings, other.readings, strict=True))
        inputs = (self.owner, self.words, self.around)
        return same and inputs == (other.owner, other.words, other.around)


@dataclass(frozen=True, slots=True)
class KnownPlans:
    """Remember the last plans by AtomDeployment."""

    known: dict[ObjectKey, deque[_Made]] = field(default_factory=dict)

    def plan_spec(self, owner: Owner, spec: AtomDeploymentSpec, around: Surroundings) -> Planned:
        """Return the plan of a spec, or its problems, as planning.plan_spec does."""
        asked = _Made(owner, *_inputs(spec, around), ())
        planned: Planned = self._planned(asked, lambda: plan_spec(owner, spec, around))
        return planned

    def plan_in_force(
        self, owner: Owner, spec: AtomDeploymentSpec, image: str, around: Surroundings
    ) -> Plan | None:
        """Return the plan of a spec that was accepted before, as planning.plan_in_force does."""
        words, without, readings = _inputs(spec, around)
        asked = _Made(owner, (*words, image), without, readings, None)
        planned: Plan | None = self._planned(
            asked, lambda: plan_in_force(owner, spec, image, around)
        )
        return planned

    def _planned(self, asked: _Made, plan: Callable[[], Any]) -> Any:
        known = self.known.setdefault(asked.owner.key, deque(maxlen=_OF_ONE))
        for made in known:
            if made.is_of(asked):
                return made.planned
        planned = plan()
        known.append(replace(asked, planned=planned))
        return planned

    def forget(self, key: ObjectKey) -> None:
        self.known.pop(key, None)


def _inputs(
    spec: AtomDeploymentSpec, around: Surroundings
) -> tuple[tuple[str, ...], Surroundings, tuple[Any, ...]]:
    """Return the specs as JSON, which unlike their equality tells set fields from defaults; the
    surroundings as values that no caller changes; and the readings of the cluster."""
    layers = around.layers
    specs = (spec,) if layers.own is None else (spec, layers.own)
    words = tuple(each.model_dump_json(by_alias=True, exclude_unset=True) for each in specs)
    without = replace(
        around,
        images=dict(around.images),
        nodes=(),
        devices=None,
        layers=SpecLayers(layers.profile, None, layers.default),
    )
    return words, without, (around.nodes, around.devices)
