"""AdmissionReviews as the API server sends them."""

from __future__ import annotations

from typing import Any

from atom_operator.domain import Manifest
from tests.support.operator.builders_operator import atom_deployment

UID = "11111111-2222-3333-4444-555555555555"


def review_body(
    new: Manifest, old: Manifest | None = None, *, dry_run: bool = False
) -> dict[str, Any]:
    """The whole body; the object's uid is what the API server has given it already."""
    for manifest in (new, old):
        if manifest is not None:
            manifest["metadata"].setdefault("uid", "uid-under-review")
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": UID,
            "operation": "CREATE" if old is None else "UPDATE",
            "namespace": "default",
            "name": new["metadata"].get("name", ""),
            "object": new,
            "oldObject": old,
            "dryRun": dry_run,
        },
    }


def creation(*, dry_run: bool = True, **changes: Any) -> dict[str, Any]:
    """Somebody creates `chat`."""
    return review_body(atom_deployment(**changes), dry_run=dry_run)
