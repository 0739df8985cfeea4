"""What this process applied last, and what came of it: a child that is still both costs no request.

Exact, not a guess: a write is left out only when the manifest is the one applied before and the
object, read in this pass, is the one that the API server answered then, its status aside. Lost with
the process and with a term, after which everything is applied again. Called by apply_children.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from atom_operator.domain import ChildKey, Manifest, ObjectKey

# Who wrote when, and what the API server names only in single answers or others report.
_NOT_CONTENT = ("status", "apiVersion", "kind")
_NOT_CONTENT_OF_METADATA = ("managedFields", "resourceVersion")
_Digests = tuple[bytes, bytes]


class AppliedChildren:
    """Two digests per child."""

    def __init__(self) -> None:
        self._known: dict[ObjectKey, dict[ChildKey, _Digests]] = {}

    def forget_all(self) -> None:
        """A new term: another replica may have applied something else since."""
        self._known.clear()

    def forget(self, key: ObjectKey) -> None:
        """The AtomDeployment is gone."""
        self._known.pop(key, None)

    def is_current(
        self, key: ObjectKey, child: ChildKey, manifest: Manifest, existing: Manifest
    ) -> bool:
        """Whether applying `manifest` again would change nothing about `existing`."""
        known = self._known.get(key, {}).get(child)
        return known is not None and known == (_digest(manifest), content_digest(existing))

    def remember(
        self, key: ObjectKey, child: ChildKey, manifest: Manifest, answer: Manifest
    ) -> None:
        """`answer` is what the API server has after applying `manifest`."""
        digests = (_digest(manifest), content_digest(answer))
        self._known.setdefault(key, {})[child] = digests


def content_digest(existing: Manifest) -> bytes:
    """Of everything that an apply could have to put right."""
    content = {name: value for name, value in existing.items() if name not in _NOT_CONTENT}
    content["metadata"] = {
        name: value
        for name, value in existing["metadata"].items()
        if name not in _NOT_CONTENT_OF_METADATA
    }
    return _digest(content)


def _digest(value: Mapping[str, Any]) -> bytes:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).digest()
