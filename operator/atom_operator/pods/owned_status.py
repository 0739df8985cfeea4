"""The status of an AtomDeployment that another one owns, as its owner reads it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atom_operator.constants import ConditionType
from atom_operator.domain import Manifest

STARTS = "its pods are being started"


def is_reported(manifest: Manifest) -> bool:
    """Return whether the status describes the newest spec."""
    seen = (manifest.get("status") or {}).get("observedGeneration")
    return bool(seen == manifest["metadata"].get("generation"))


def condition_of(manifest: Manifest, kind: ConditionType) -> Mapping[str, Any]:
    """Return a condition of the status; empty if it is not there."""
    found = (manifest.get("status") or {}).get("conditions") or ()
    return next((item for item in found if item.get("type") == kind), {})


def is_ready(manifest: Manifest) -> bool:
    """Return whether the condition Ready is true, whichever spec the status describes."""
    return bool(condition_of(manifest, ConditionType.READY).get("status") == "True")


def refusal(manifest: Manifest) -> tuple[ConditionType, str] | None:
    """Return the condition by which the spec is not carried out and its message, or None."""
    for kind in (ConditionType.ACCEPTED, ConditionType.CAPACITY_FITS):
        found = condition_of(manifest, kind)
        if found.get("status") == "False":
            return kind, str(found.get("message"))
    return None
