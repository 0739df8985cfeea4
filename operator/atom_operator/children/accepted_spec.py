"""The record of the last spec that was carried out: what stays in force while its successor is held
back. Pure.

A ControllerRevision, as the record of the pods is, and for the same reasons: its data never
changes, and who may not read pods may not read the values in it. The number of replicas is left
out: it is always that of the newest spec.
"""

from __future__ import annotations

import json
from typing import Any

from atom_operator import constants
from atom_operator.children import naming
from atom_operator.domain import CONTROLLER_REVISION, Manifest, Plan


def accepted_spec(plan: Plan) -> Manifest:
    """The object that remembers what `plan` was made from."""
    asked = {name: value for name, value in plan.asked.items() if name != "replicas"}
    data: dict[str, Any] = {constants.ACCEPTED_SPEC_KEY: asked}
    digested: Any = asked
    if plan.profile is not None and plan.profile.template is not None:
        template = dict(plan.profile.template)
        data[constants.ACCEPTED_PROFILE_KEY] = {"name": plan.profile.name, "template": template}
        digested = data
    digest = naming.short_hash(json.dumps(digested, sort_keys=True))
    return {
        "apiVersion": CONTROLLER_REVISION.api_version,
        "kind": CONTROLLER_REVISION.kind,
        "metadata": naming.metadata(plan, f"{plan.key.name}-spec-{digest}"),
        "revision": 1,
        "data": data,
    }
