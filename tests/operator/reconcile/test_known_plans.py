"""An unchanged spec is planned once, and a change of any input plans it anew."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from atom_operator.api.v1alpha1 import AtomDeploymentSpec
from atom_operator.domain import ObjectKey, Owner, Plan
from atom_operator.integration_values import Site
from atom_operator.reconcile.known_plans import KnownPlans
from atom_operator.reconcile.planning import ModelKnown, Surroundings, plan_in_force, plan_spec
from atom_operator.validation.parsing import parse_spec
from tests.support.operator.builders_operator import atom_deployment, gpu_node

OWNER = Owner(ObjectKey("default", "chat"), "uid")
ASKED: dict[str, Any] = {"accelerator": {"type": "cpu", "memory": "16Gi"}}


def spec_of(**changes: Any) -> AtomDeploymentSpec:
    found = parse_spec(atom_deployment("chat", **{**ASKED, **changes})["spec"])
    assert isinstance(found, AtomDeploymentSpec)
    return found


def around() -> Surroundings:
    return Surroundings(images={"cpu": "registry.test/atom:1"}, nodes=())


def test_an_unchanged_spec_is_planned_once() -> None:
    plans = KnownPlans()
    first = plans.plan_spec(OWNER, spec_of(), around())
    assert first == plan_spec(OWNER, spec_of(), around())
    assert plans.plan_spec(OWNER, spec_of(), around()) is first
    known = replace(around(), known=ModelKnown(config_text="{}"))
    second = plans.plan_spec(OWNER, spec_of(), known)
    for _ in range(2):  # looks of which each plans before and after the model is known
        assert plans.plan_spec(OWNER, spec_of(), around()) is first
        assert plans.plan_spec(OWNER, spec_of(), known) is second


@pytest.mark.parametrize(
    "change",
    [
        lambda: (OWNER, spec_of(replicas=2), around()),
        lambda: (OWNER, spec_of(suspend=False), around()),  # stated, and the default too
        lambda: (Owner(OWNER.key, "another"), spec_of(), around()),
        lambda: (OWNER, spec_of(), replace(around(), images={"cpu": "registry.test/atom:2"})),
        lambda: (OWNER, spec_of(), replace(around(), site=Site(user_id=5))),
        lambda: (OWNER, spec_of(), replace(around(), nodes=[gpu_node("a")])),
        lambda: (OWNER, spec_of(), replace(around(), served=frozenset())),
    ],
    ids=["spec", "stated default", "owner", "image", "site", "nodes", "kinds"],
)
def test_any_other_input_plans_anew(change: Callable[[], tuple[Any, ...]]) -> None:
    plans = KnownPlans()
    first = plans.plan_spec(OWNER, spec_of(), around())
    assert isinstance(first, Plan)
    again = plans.plan_spec(*change())
    assert again is not first
    assert again == plan_spec(*change())


def test_images_that_change_in_place_are_noticed() -> None:
    plans, images = KnownPlans(), {"cpu": "registry.test/atom:1"}
    first = plans.plan_spec(OWNER, spec_of(), Surroundings(images=images))  # type: ignore[arg-type]
    images["cpu"] = "registry.test/atom:2"
    again = plans.plan_spec(OWNER, spec_of(), Surroundings(images=images))  # type: ignore[arg-type]
    assert again is not first


def test_an_atomdeployment_that_is_gone_is_forgotten() -> None:
    plans = KnownPlans()
    first = plans.plan_spec(OWNER, spec_of(), around())
    plans.forget(OWNER.key)
    assert plans.plan_spec(OWNER, spec_of(), around()) is not first


def test_a_spec_in_force_is_planned_once_for_each_image_and_apart_from_the_newest() -> None:
    plans = KnownPlans()
    newest = plans.plan_spec(OWNER, spec_of(), around())
    made = {
        image: plans.plan_in_force(OWNER, spec_of(), image, around())
        for image in ("registry.test/atom:1", "registry.test/atom:2")
    }
    for image, plan in made.items():
        assert plan is not newest
        assert plan == plan_in_force(OWNER, spec_of(), image, around())
        assert plans.plan_in_force(OWNER, spec_of(), image, around()) is plan
    assert plans.plan_spec(OWNER, spec_of(), around()) is newest
    assert plans.plan_in_force(OWNER, spec_of(replicas=2), image, around()) is not plan
