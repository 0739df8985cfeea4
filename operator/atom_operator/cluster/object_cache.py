"""ObjectCache: the newest known version of the objects of one kind, found by label.

A data structure: knows no API and waits for nothing. Versions only advance: an object is replaced
only by a newer version of itself (resource versions are numbers that grow, KEP-5504). Objects are
stored as JSON, a fraction of the size of dicts, and every reader gets a copy. Filled by the
informer and by our own writes, read by CachedCluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from atom_operator import constants
from atom_operator.cluster.foreign_edits import fields_of_others
from atom_operator.domain import Manifest
from atom_operator.domain.lookup_terms import terms_of

T = TypeVar("T")
# What objects can be asked for by.
INDEXED_LABELS = frozenset(
    {
        constants.LABEL_DEPLOYMENT,
        constants.LABEL_LEARNED,
        constants.LABEL_JOB_FOR,
        constants.LABEL_PROFILE,
    }
)
# The items of a list omit their kind.
_NOT_KEPT = ("apiVersion", "kind")
_WRITERS = "managedFields"


@dataclass(frozen=True, slots=True)
class StoredObject:
    """Store one version of an object; `labels` are those of INDEXED_LABELS that it carries."""

    namespace: str
    name: str
    version: str
    labels: tuple[tuple[str, str], ...]
    body: bytes
    terms: tuple[str, ...] = ()  # by which others look it up

    @classmethod
    def of(cls, manifest: Manifest) -> StoredObject:
        """Make one of an object as the API server shows it, by whichever request."""
        metadata = manifest["metadata"]
        kept = {name: value for name, value in manifest.items() if name not in _NOT_KEPT}
        kept["metadata"] = {name: value for name, value in metadata.items() if name != _WRITERS}
        labels = metadata.get("labels") or {}
        # Of field managers and times, only other managers of a child are asked about; for pods,
        # which kubelets write, none.
        is_pod = "containers" in (manifest.get("spec") or {})
        if constants.LABEL_DEPLOYMENT in labels and not is_pod:
            others = fields_of_others(metadata.get(_WRITERS))
            kept["metadata"] |= {_WRITERS: others} if others else {}
        return cls(
            metadata.get("namespace", ""),
            metadata["name"],
            str(metadata.get("resourceVersion", "")),
            tuple((label, labels[label]) for label in INDEXED_LABELS if label in labels),
            msgspec.json.encode(kept),
            () if is_pod else terms_of(kept),
        )

    def manifest(self) -> Manifest:
        """Return a copy of the object, as the item of a list."""
        found: Manifest = msgspec.json.decode(self.body)
        return found


class ObjectCache:
    """Hold objects by namespace and name; all methods take time in proportion to the objects
    touched."""

    def __init__(self) -> None:
        self._objects: dict[tuple[str, str], StoredObject] = {}
        self._names: dict[tuple[str, str, str], set[str]] = {}  # by namespace, label and value
        self._by_term: dict[str, set[tuple[str, str]]] = {}
        self._in_namespace: dict[str, set[str]] = {}
        self._listed_at = ""

    def __len__(self) -> int:
        return len(self._objects)

    def in_namespace(self, namespace: str) -> list[Manifest]:
        """Return the objects of a namespace, sorted by name."""
        names = sorted(self._in_namespace.get(namespace, ()))
        return [self._objects[namespace, name].manifest() for name in names]

    def every_as(self, type_: type[T]) -> list[T]:
        """Decode each object as `type_`; fields that it lacks are skipped."""
        return [msgspec.json.decode(item.body, type=type_) for item in self._objects.values()]

    def get(self, namespace: str, name: str) -> Manifest | None:
        """Return a copy of the object of that name, None if there is none."""
        found = self._objects.get((namespace, name))
        return None if found is None else found.manifest()

    def put(self, item: StoredObject) -> bool:
        """Return whether this is news: an object, or a version of it, that we did not have."""
        known = self._objects.get((item.namespace, item.name))
        if known is not None and not is_newer(item.version, known.version):
            return False
        self._forget(known)
        self._objects[item.namespace, item.name] = item
        self._in_namespace.setdefault(item.namespace, set()).add(item.name)
        for label, value in item.labels:
            self._names.setdefault((item.namespace, label, value), set()).add(item.name)
        for term in item.terms:
            self._by_term.setdefault(term, set()).add((item.namespace, item.name))
        return True

    def remove(self, item: StoredObject) -> bool:
        """Remove an object deleted in the version of `item`; return whether that is news."""
        known = self._objects.get((item.namespace, item.name))
        if known is None or is_newer(known.version, item.version):
            return False  # a namesake was made since
        self._forget(known)
        return True

    def forget(self, namespace: str, name: str) -> None:
        """Remove an object of any version that is gone."""
        self._forget(self._objects.get((namespace, name)))

    def replace(self, items: Iterable[StoredObject], version: str) -> list[StoredObject]:
        """Replace the contents by the list at `version`; return the changed and the removed
        objects."""
        if is_newer(self._listed_at, version):
            self.clear()  # the cluster was restored to an older state, and counts again from there
        self._listed_at = version
        listed = list(items)
        names = {(item.namespace, item.name) for item in listed}
        gone = [
            known
            for key, known in self._objects.items()
            if key not in names and not is_newer(known.version, version)
        ]
        for known in gone:
            self._forget(known)
        return [*gone, *(item for item in listed if self.put(item))]

    def select(self, namespace: str, labels: Mapping[str, str]) -> list[Manifest]:
        """Return the objects that carry all of `labels`, one at least and all indexed; sorted by
        name."""
        found = [self._names.get((namespace, *item), set()) for item in labels.items()]
        names = sorted(set.intersection(*found))
        return [self._objects[namespace, name].manifest() for name in names]

    def find(self, term: str) -> list[Manifest]:
        """Return the objects that have the term, sorted by namespace and name."""
        return [self._objects[key].manifest() for key in sorted(self._by_term.get(term, ()))]

    def clear(self) -> list[StoredObject]:
        """Remove all objects and return them."""
        gone = list(self._objects.values())
        self._objects.clear()
        self._names.clear()
        self._by_term.clear()
        self._in_namespace.clear()
        self._listed_at = ""
        return gone

    def _forget(self, known: StoredObject | None) -> None:
        if known is None:
            return
        del self._objects[known.namespace, known.name]
        beside = self._in_namespace[known.namespace]
        beside.discard(known.name)
        if not beside:
            del self._in_namespace[known.namespace]
        for label, value in known.labels:
            names = self._names[known.namespace, label, value]
            names.discard(known.name)
            if not names:
                del self._names[known.namespace, label, value]
        for term in known.terms:
            keys = self._by_term[term]
            keys.discard((known.namespace, known.name))
            if not keys:
                del self._by_term[term]


def is_newer(version: str, than: str) -> bool:
    """Return whether `version` is newer. Versions that are no numbers cannot be compared: a
    different one counts as newer."""
    if version.isdigit() and than.isdigit():
        return int(version) > int(than)
    return version != than and version != ""
