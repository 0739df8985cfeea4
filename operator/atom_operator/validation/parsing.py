"""Raw spec → frozen model, or the reasons why not.

The API server has checked the schema already; this catches a CRD that is newer or older than the
operator. Pure; called by reconcile.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from pydantic import BaseModel, ValidationError

from atom_operator.api.crd import structural_schema
from atom_operator.api.v1alpha1 import AtomDeploymentSpec, AtomProfileSpec
from atom_operator.constants import Reason
from atom_operator.domain import FieldProblem
from atom_operator.served_schema.structure import shown, structure_problems
from atom_operator.validation.rules import (
    object_metadata_problems,
    template_problems,
)


def parse_spec(raw: Mapping[str, Any]) -> AtomDeploymentSpec | tuple[FieldProblem, ...]:
    """Return the typed spec, or one problem per field that does not parse."""
    try:
        return AtomDeploymentSpec.model_validate(raw)
    except ValidationError as error:
        return _in_our_words(AtomDeploymentSpec, raw, error)


def parse_profile(name: str, raw: Mapping[str, Any]) -> AtomProfileSpec | tuple[FieldProblem, ...]:
    """Return the typed spec of an AtomProfile, or everything that is wrong with it by itself."""
    try:
        profile = AtomProfileSpec.model_validate(raw)
    except ValidationError as error:
        found = _in_our_words(AtomProfileSpec, raw, error)
        return tuple(_of_profile(name, str(problem)) for problem in found)
    template = profile.template or {}
    found = (
        *template_problems(template, "spec.template"),
        *object_metadata_problems(profile.objects),
    )
    said = [str(problem) for problem in found]
    if profile.accelerator.claim is not None and profile.accelerator.resource_name is not None:
        # The API server refuses it in an AtomProfile; the chart's defaults come past it.
        said.append(
            "spec.accelerator: set claim (a DRA driver) or resourceName (a device plugin), not both"
        )
    return tuple(_of_profile(name, words) for words in said) or profile


def _in_our_words(
    model: type[BaseModel], raw: Mapping[str, Any], error: ValidationError
) -> tuple[FieldProblem, ...]:
    """Describe why `raw` is no `model`, by the schema that users know from kubectl explain."""
    found = tuple(structure_problems(_schema(model), raw, "spec"))
    if found:
        return found
    # Only a schema of another version, or none at all, lets such a value come this far.
    return tuple(
        FieldProblem(_path(item["loc"]), f"cannot take {shown(item['input'])}; correct it")
        for item in error.errors()
    )


@cache
def _schema(model: type[BaseModel]) -> Mapping[str, Any]:
    return structural_schema(model)


def _path(location: tuple[str | int, ...]) -> str:
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in location)
    return f"spec{''.join(steps)}"


def _of_profile(name: str, words: str) -> FieldProblem:
    return FieldProblem(
        "spec.profile",
        f"AtomProfile {name} cannot be used: {words}; correct it (kubectl explain"
        " atomprofile.spec) or name another one",
        Reason.INVALID_PROFILE,
    )
