"""The ResourceClaimTemplate: each pod gets a claim by it, for all of its devices. Pure.

Its spec cannot be changed, so its name depends on the requested devices: other devices are another
template, which only pods of another revision name.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from atom_operator.children import naming
from atom_operator.domain import (
    Accelerator,
    EngineOptions,
    Identity,
    Manifest,
    ObjectKey,
    PodRevision,
)
from atom_operator.domain.devices import DeviceClaim
from atom_operator.kinds import RESOURCE_CLAIM_TEMPLATE

CLAIM = "gpus"  # in the pod


def devices_of_container(
    engine: EngineOptions, accelerator: Accelerator
) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the amounts that a container asks for its devices by, and the fields that it claims
    them by: one of both is empty."""
    if accelerator.claim is not None:
        return {}, {"claims": [{"name": CLAIM}]}
    return {str(accelerator.resource_name): str(engine.devices_per_pod)}, {}


def resource_claim_template(
    identity: Identity, engine: EngineOptions, accelerator: Accelerator
) -> Manifest | None:
    """Render the template; None if pods take no devices by a claim."""
    claim = accelerator.claim
    if claim is None:
        return None
    return {
        "apiVersion": RESOURCE_CLAIM_TEMPLATE.api_version,
        "kind": RESOURCE_CLAIM_TEMPLATE.kind,
        "metadata": naming.metadata(identity, claim_template_name(identity.key, engine, claim)),
        "spec": {
            "metadata": {"labels": naming.child_labels(identity.key.name)},
            "spec": _claim_spec(engine, claim),
        },
    }


def claim_template_name(key: ObjectKey, engine: EngineOptions, claim: DeviceClaim) -> str:
    """Name the template by its request."""
    text = json.dumps(_claim_spec(engine, claim), sort_keys=True)
    return f"{key.name}-{CLAIM}-{naming.short_hash(text)[:8]}"


def templates_named_by(revisions: Iterable[PodRevision | None]) -> frozenset[str]:
    """Name the templates by which these pods would get their claims."""
    return frozenset(
        str(entry["resourceClaimTemplateName"])
        for pods in revisions
        if pods is not None
        for entry in pods.template["spec"].get("resourceClaims") or ()
        if entry.get("resourceClaimTemplateName")
    )


def _claim_spec(engine: EngineOptions, claim: DeviceClaim) -> dict[str, Any]:
    wanted = {
        "deviceClassName": claim.device_class,
        "allocationMode": "ExactCount",
        "count": engine.devices_per_pod,
        "selectors": [{"cel": {"expression": claim.expression}}],
    }
    return {"devices": {"requests": [{"name": CLAIM, "exactly": wanted}]}}
