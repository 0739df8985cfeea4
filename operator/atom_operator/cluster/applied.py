"""Applied children: the manifest applied last and the API server's answer; an unchanged child costs
no request.

Exact, not a guess: a write is left out only if the manifest is the one applied before and the
object, read in this pass, is the one that the API server answered then, its status aside. The
memory is lost with the process and with a term; an annotation records the manifest of a former one,
and the child is left alone if every value of the manifest is still there. A child to which another
client has only added fields is left alone too: a controller numbers each revision of a Deployment.
Called by apply_children.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec

from atom_operator import constants
from atom_operator.domain import ChildKey, Manifest, ObjectKey

# Field managers and times, and fields that the API server sets only in single answers, or others
# report.
_NOT_CONTENT = ("status", "apiVersion", "kind")
_NOT_CONTENT_OF_METADATA = ("managedFields", "resourceVersion")
# Maps that an apply replaces as a whole: a label that another client adds would select nothing.
_WHOLE = ("selector", "matchLabels", "nodeSelector", "data")
_Digests = tuple[bytes, bytes]


class AppliedChildren:
    """Two digests per child."""

    def __init__(self) -> None:
        self._known: dict[ObjectKey, dict[ChildKey, _Digests]] = {}

    def forget_all(self) -> None:
        """Forget everything at a new term: another replica may have applied changes since."""
        self._known.clear()

    def forget(self, key: ObjectKey) -> None:
        """Forget an AtomDeployment that is gone."""
        self._known.pop(key, None)

    def is_current(
        self, key: ObjectKey, child: ChildKey, manifest: Manifest, existing: Manifest
    ) -> bool:
        """Return whether applying `manifest` again would change nothing about `existing`."""
        known = self._known.get(key, {}).get(child)
        if known is not None and known == (_digest(manifest), content_digest(existing)):
            return True
        if not _was_applied(manifest, existing):
            return False
        self.remember(key, child, manifest, existing)
        return True

    def remember(
        self, key: ObjectKey, child: ChildKey, manifest: Manifest, answer: Manifest
    ) -> None:
        """Remember `answer`, the API server's object after applying `manifest`."""
        digests = (_digest(manifest), content_digest(answer))
        self._known.setdefault(key, {})[child] = digests


def stamped(manifest: Manifest) -> Manifest:
    """Stamp the manifest with its digest, by which a later process knows that it was applied."""
    metadata = manifest["metadata"]
    digest = {constants.ANNOTATION_APPLIED: _digest(manifest).hex()}
    annotations = {**(metadata.get("annotations") or {}), **digest}
    return {**manifest, "metadata": {**metadata, "annotations": annotations}}


def _was_applied(manifest: Manifest, existing: Manifest) -> bool:
    """Return whether `manifest` (stamped) was the last that we applied, so that we own exactly its
    fields, and all of its values are unchanged. A value that the API server writes otherwise (a
    quantity, an empty string) makes this False, which costs one apply."""
    ours = manifest["metadata"].get("annotations") or {}
    theirs = existing["metadata"].get("annotations") or {}
    applied = ours.get(constants.ANNOTATION_APPLIED)
    if applied is None or theirs.get(constants.ANNOTATION_APPLIED) != applied:
        return False
    content = {name: value for name, value in manifest.items() if name not in _NOT_CONTENT}
    return _holds(existing, content)


def _holds(existing: Any, wanted: Any, name: str = "") -> bool:
    """Return whether `existing` has all of `wanted`, and, in parts of a single writer (unknown
    lists, selectors), nothing else."""
    if isinstance(wanted, Mapping):
        if not isinstance(existing, Mapping) or (name in _WHOLE and existing != wanted):
            return False
        return all(key in existing and _holds(existing[key], wanted[key], key) for key in wanted)
    if isinstance(wanted, list):
        if not isinstance(existing, list) or len(existing) != len(wanted):
            return False
        return all(map(_holds, existing, wanted))
    return bool(existing == wanted)


def content_digest(existing: Manifest) -> bytes:
    """Digest everything that an apply could have to put right."""
    content = {name: value for name, value in existing.items() if name not in _NOT_CONTENT}
    content["metadata"] = {
        name: value
        for name, value in existing["metadata"].items()
        if name not in _NOT_CONTENT_OF_METADATA
    }
    return _digest(content)


def _digest(value: Mapping[str, Any]) -> bytes:
    text = msgspec.json.encode(value, order="deterministic")
    return hashlib.blake2b(text, digest_size=16).digest()
