"""Raw spec → frozen model, or the reasons why not.

The API server has checked the schema already; this catches a CRD that is newer or older than the
operator. Pure; called by reconcile.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from atom_operator.api.v1alpha1 import AtomDeploymentSpec
from atom_operator.domain import FieldProblem


def parse_spec(raw: Mapping[str, Any]) -> AtomDeploymentSpec | tuple[FieldProblem, ...]:
    """The typed spec, or one problem per field that does not parse."""
    try:
        return AtomDeploymentSpec.model_validate(raw)
    except ValidationError as error:
        return tuple(
            FieldProblem(
                ".".join(("spec", *map(str, item["loc"]))),
                f"{item['msg']}; see kubectl explain atomdeployment.spec",
            )
            for item in error.errors()
        )
