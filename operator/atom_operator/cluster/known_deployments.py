"""KnownDeployments: the version of each AtomDeployment that a reconcile has last read or written.

A reconcile reads its AtomDeployment first, and writes only a status into it. An event of an older
version, or of our own status, is no news. Knows no API. Filled by CachedCluster, asked by the
runtime for every event.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import msgspec

from atom_operator.cluster.object_cache import is_newer
from atom_operator.domain import Manifest, ObjectKey

# The generation in the rest of it grows with every spec.
_NOT_CONTENT = ("resourceVersion", "managedFields")


@dataclass(frozen=True, slots=True)
class _Known:
    version: str
    content: bytes


class KnownDeployments:
    """A few hundred bytes for each."""

    def __init__(self) -> None:
        self._known: dict[ObjectKey, _Known] = {}

    def read(self, manifest: Manifest) -> None:
        """Record the version that a reconcile has just read: whatever it is, it is the newest."""
        self._known[ObjectKey.of(manifest)] = _Known(_version(manifest), _content(manifest))

    def reported(self, answer: Manifest) -> None:
        """Record the answer to our status: known as well, unless another field in it is new."""
        known = self._known.get(ObjectKey.of(answer))
        if known is not None and known.content == _content(answer):
            self.read(answer)

    def is_news(self, key: ObjectKey, version: str) -> bool:
        """Return whether this version is newer than the one that a reconcile has read."""
        known = self._known.get(key)
        return known is None or is_newer(version, known.version)

    def forget(self, key: ObjectKey) -> None:
        """Forget an AtomDeployment that is gone."""
        self._known.pop(key, None)

    def forget_all(self) -> None:
        """Forget everything at a new term: another replica may have reconciled since."""
        self._known.clear()


def _version(manifest: Manifest) -> str:
    return str(manifest["metadata"].get("resourceVersion", ""))


def _content(manifest: Manifest) -> bytes:
    metadata = manifest["metadata"]
    kept = {name: value for name, value in metadata.items() if name not in _NOT_CONTENT}
    text = msgspec.json.encode(kept, order="deterministic")
    return hashlib.blake2b(text, digest_size=16).digest()
