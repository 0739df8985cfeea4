"""AdmissionReview, the API server's question and our answer, as typed values. Pure.

Knows the wire format of admission.k8s.io/v1 and nothing of the reviewed objects. Called by the
webhook's server.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atom_operator.constants import KIND
from atom_operator.domain import Manifest, ObjectKey

API_VERSION = "admission.k8s.io/v1"
# The API server cuts a warning at 256 characters and drops text past 4,096 in total; its
# documentation asks for 120.
WARNING_LENGTH = 120
_ALL_WARNINGS_LENGTH = 3_800
_UNPROCESSABLE = 422


class ReviewError(ValueError):
    """The body is no AdmissionReview that this webhook understands."""


@dataclass(frozen=True, slots=True)
class ReviewRequest:
    """Hold one object that a client of the API server creates or changes."""

    uid: str
    key: ObjectKey
    new: Manifest
    old: Manifest | None  # None for a creation
    dry_run: bool
    kind: str = KIND

    @property
    def changes_spec(self) -> bool:
        """Return whether the spec is new: labels, annotations and finalizers alone are not
        reviewed."""
        return self.old is None or self.old.get("spec") != self.new.get("spec")


@dataclass(frozen=True, slots=True)
class Verdict:
    """Hold the verdict on an object; `refusal` is the message for the user, None if it may be
    stored."""

    warnings: tuple[str, ...] = ()
    refusal: str | None = None


def parse_review(body: object) -> ReviewRequest:
    """Raises ReviewError."""
    request = body.get("request") if isinstance(body, Mapping) else None
    if not isinstance(request, Mapping) or not request.get("uid"):
        raise ReviewError(f"the body is no {API_VERSION} AdmissionReview with a request")
    new, old = request.get("object"), request.get("oldObject")
    if not isinstance(new, dict) or not isinstance(new.get("metadata"), dict):
        raise ReviewError("the request has no object; only CREATE and UPDATE are understood")
    metadata = new["metadata"]
    name = request.get("name") or metadata.get("name") or metadata.get("generateName") or ""
    namespace = request.get("namespace") or metadata.get("namespace") or ""
    return ReviewRequest(
        uid=str(request["uid"]),
        key=ObjectKey(str(namespace), str(name)),
        new=new,
        old=old if isinstance(old, dict) else None,
        dry_run=bool(request.get("dryRun")),
        kind=str((request.get("kind") or {}).get("kind") or KIND),
    )


def answer(uid: str, verdict: Verdict) -> dict[str, Any]:
    """Return the AdmissionReview to send back."""
    response: dict[str, Any] = {"uid": uid, "allowed": verdict.refusal is None}
    if verdict.warnings:
        response["warnings"] = shortened(verdict.warnings)
    if verdict.refusal is not None:
        status = {"code": _UNPROCESSABLE, "reason": "Invalid", "message": verdict.refusal}
        response["status"] = status
    return {"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": response}


def shortened(warnings: Sequence[str]) -> list[str]:
    """Cut warnings to lines that arrive whole: long ones wrapped, and the end left out with a
    note."""
    lines = [line for warning in warnings for line in _wrapped(warning)]
    kept: list[str] = []
    length = 0
    for line in lines:
        length += len(line.encode())
        if length > _ALL_WARNINGS_LENGTH:
            return [*kept, f"{len(lines) - len(kept)} more lines: kubectl atom plan -f FILE"]
        kept.append(line)
    return kept


def _wrapped(text: str) -> list[str]:
    """Break lines between words; the API forbids control characters, newlines among them."""
    return textwrap.wrap(text, WARNING_LENGTH, subsequent_indent="  ", break_on_hyphens=False)
