"""The ResourceClaimTemplate: each pod gets a claim of its own by it, for all of its devices. Pure.

Its spec cannot be changed, so it is named by what it asks for: other devices are another template,
which only pods of another revision name.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from atom_operator.children import naming
from atom_operator.domain import Manifest, Plan, PodRevision
from atom_operator.domain.devices import DeviceClaim
from atom_operator.kinds import RESOURCE_CLAIM_TEMPLATE

CLAIM = "gpus"  # in the pod


def devices_of_container(plan: Plan) -> tuple[dict[str, str], dict[str, Any]]:
    """The amounts that a container asks for its devices by, and the fields that it claims them by:
    one of both is empty."""
    if plan.accelerator.claim is not None:
        return {}, {"claims": [{"name": CLAIM}]}
    return {str(plan.accelerator.resource_name): str(plan.engine.devices_per_pod)}, {}


def resource_claim_template(plan: Plan) -> Manifest | None:
    """The template; None where pods take no devices by a claim."""
    claim = plan.accelerator.claim
    if claim is None:
        return None
    return {
        "apiVersion": RESOURCE_CLAIM_TEMPLATE.api_version,
        "kind": RESOURCE_CLAIM_TEMPLATE.kind,
        "metadata": naming.metadata(plan, claim_template_name(plan, claim)),
        "spec": {
            "metadata": {"labels": naming.child_labels(plan.key.name)},
            "spec": _claim_spec(plan, claim),
        },
    }


def claim_template_name(plan: Plan, claim: DeviceClaim) -> str:
    """Name the template by what it asks for."""
    text = json.dumps(_claim_spec(plan, claim), sort_keys=True)
    return f"{plan.key.name}-{CLAIM}-{naming.short_hash(text)[:8]}"


def templates_named_by(revisions: Iterable[PodRevision | None]) -> frozenset[str]:
    """Name the templates by which these pods would get their claims."""
    return frozenset(
        str(entry["resourceClaimTemplateName"])
        for pods in revisions
        if pods is not None
        for entry in pods.template["spec"].get("resourceClaims") or ()
        if entry.get("resourceClaimTemplateName")
    )


def _claim_spec(plan: Plan, claim: DeviceClaim) -> dict[str, Any]:
    wanted = {
        "deviceClassName": claim.device_class,
        "allocationMode": "ExactCount",
        "count": plan.engine.devices_per_pod,
        "selectors": [{"cel": {"expression": claim.expression}}],
    }
    return {"devices": {"requests": [{"name": CLAIM, "exactly": wanted}]}}
