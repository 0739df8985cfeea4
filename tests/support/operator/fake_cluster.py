"""FakeCluster: an in-memory ClusterPort with server-side-apply ownership, for reconcile tests.

What it keeps of the real thing: fields applied by one manager and later omitted are removed, fields
of other managers stay, a no-op apply changes no resourceVersion, generation moves with the spec,
an owner's deletion removes its children, and a workload without replicas has one. `fail_on` makes
the n-th write raise, `controllers` plays the Deployment controller.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec.msgpack import encode

from atom_operator import constants
from atom_operator.cluster.errors import (
    AlreadyExistsError,
    ClusterError,
    NotFoundError,
    RefusedError,
    TransientError,
)
from atom_operator.domain import (
    ATOM_DEPLOYMENT,
    ATOM_PROFILE,
    DEPLOYMENT,
    EVENT,
    NAMESPACE,
    POD,
    WORKLOAD_KINDS,
    Kind,
    Manifest,
    ObjectKey,
)
from atom_operator.domain.lookup_terms import terms_of
from atom_operator.kinds import RESOURCE_CLAIM
from tests.support.operator.merged_fields import (
    Path,
    copied,
    drop_nameless_items,
    leaves,
    merge,
    remove,
    value_at,
)

_Key = tuple[Kind, str, str]
# Fields that a create or a replacement wrote belong to another entry than those of an apply.
_UPDATES = f"{constants.FIELD_MANAGER} (Update)"


@dataclass
class FakeCluster:
    """Objects by kind, namespace and name; `writes` is the log of every successful write."""

    objects: dict[_Key, Manifest] = field(default_factory=dict)
    owned_fields: dict[tuple[_Key, str], set[Path]] = field(default_factory=dict)
    listed: list[Kind] = field(default_factory=list)  # of the kinds that may not be served
    writes: list[str] = field(default_factory=list)
    failures: dict[int, ClusterError] = field(default_factory=dict)
    refused_kinds: dict[Kind, str] = field(default_factory=dict)
    refused_dry_run: ClusterError | None = None
    image_volumes: bool = True  # else the API server takes them out of what is created
    # Kinds in whose objects somebody put an entry that makes every apply invalid.
    spoilt_kinds: set[Kind] = field(default_factory=set)
    unserved_kinds: set[Kind] = field(default_factory=set)  # whose CRD nobody has installed
    told: set[str] = field(default_factory=set)  # uids of pods as tests tell them
    nodes: list[Manifest] | None = field(default_factory=list)  # None: we may not read them
    reads: list[str] = field(default_factory=list)  # the log of every request that only reads
    node_reads: int = 0
    pod_reads: int = 0
    # Tells the time of what is created; without one objects are a second apart.
    clock: Callable[[], datetime] | None = None
    # Raises RefusedError where an object may not be created.
    admit: Callable[[Kind, Manifest], None] | None = None
    # Leaves a pod as admission does, or raises RefusedError.
    admit_pod: Callable[[Manifest], Manifest] | None = None
    # Ends a pod that is evicted, or says why not; without one it is gone at once.
    evicts: Callable[[Manifest], str | None] | None = None

    def __post_init__(self) -> None:
        self._version = 0
        self._attempts = 0
        self._at_rest: dict[tuple[_Key, str], tuple[object, ...]] = {}

    # --- ClusterPort -------------------------------------------------------------------------

    async def get(self, kind: Kind, namespace: str, name: str) -> Manifest | None:
        self.reads.append(f"get {kind.kind}")
        if kind in self.unserved_kinds:
            raise TransientError(f"get {kind.kind}: 404 page not found")
        return copied(self.objects.get((kind, namespace, name)))

    async def get_namespace_labels(self, namespace: str) -> dict[str, str]:
        found = self.objects.get((NAMESPACE, "", namespace)) or {"metadata": {}}
        return dict(found["metadata"].get("labels") or {})

    async def list_labelled(
        self, kind: Kind, namespace: str, labels: Mapping[str, str]
    ) -> list[Manifest]:
        self.reads.append(f"list {kind.kind}")
        return [
            _list_item(item)
            for (item_kind, item_namespace, _), item in self.objects.items()
            if item_kind == kind
            and item_namespace == namespace
            and labels.items() <= (item["metadata"].get("labels") or {}).items()
        ]

    async def list_if_served(
        self, kind: Kind, namespace: str, labels: Mapping[str, str]
    ) -> list[Manifest] | None:
        self.listed.append(kind)
        if kind in self.unserved_kinds:
            return None
        return await self.list_labelled(kind, namespace, labels)

    async def list_events(self, namespace: str, kind: str, name: str) -> list[Manifest]:
        self.reads.append("list Event")
        events = [item for key, item in self.objects.items() if key[:2] == (EVENT, namespace)]
        return [
            copied(item)
            for item in events
            if item.get("involvedObject", {}).get("kind") == kind
            and item["involvedObject"].get("name") == name
        ]

    async def list_children(self, kind: Kind, namespace: str) -> list[Manifest]:
        self.reads.append(f"list children {kind.kind}")
        return [item for item in self._children(kind) if item["metadata"]["namespace"] == namespace]

    async def list_children_by(self, kind: Kind, term: str) -> list[Manifest]:
        self.reads.append(f"list every {kind.kind}")
        return [item for item in self._children(kind) if term in terms_of(item)]

    def _children(self, kind: Kind) -> list[Manifest]:
        return [
            _list_item(item)
            for (item_kind, _, _), item in self.objects.items()
            if item_kind == kind
            and constants.LABEL_DEPLOYMENT in (item["metadata"].get("labels") or {})
        ]

    async def list_deployments(self) -> list[ObjectKey]:
        keys = (key for key in self.objects if key[0] == ATOM_DEPLOYMENT)
        return [ObjectKey(namespace, name) for _, namespace, name in keys]

    async def list_everywhere(self, kind: Kind) -> list[Manifest] | None:
        self.reads.append(f"list every {kind.kind}")
        if kind in self.unserved_kinds:
            return None
        return [_list_item(item) for key, item in self.objects.items() if key[0] == kind]

    async def list_nodes(self) -> list[Manifest]:
        self.reads.append("list Node")
        self.node_reads += 1
        if self.nodes is None:
            raise RefusedError("nodes is forbidden", 403)
        return copied(self.nodes)

    async def list_placed_pods(self, *, others: bool = False) -> list[Manifest]:
        self.reads.append("list placed Pod")
        self.pod_reads += 1
        return [
            copied(item)
            for (kind, _, _), item in self.objects.items()
            if kind == POD and (item.get("spec") or {}).get("nodeName")
            if not others
            or constants.LABEL_DEPLOYMENT not in (item["metadata"].get("labels") or {})
        ]

    async def apply(self, kind: Kind, manifest: Manifest) -> Manifest:
        metadata = manifest["metadata"]
        self._before_write(f"apply {kind.kind}/{metadata['name']}")
        if kind in self.refused_kinds:
            raise RefusedError(self.refused_kinds[kind], 422)
        if kind in self.spoilt_kinds:
            raise RefusedError("spec.ports[1].name: Duplicate value", 422)
        key = (kind, metadata["namespace"], metadata["name"])
        if self.admit is not None and key not in self.objects:
            self.admit(kind, manifest)
        return self.apply_as(constants.FIELD_MANAGER, key, manifest)

    async def make(self, kind: Kind, manifest: Manifest) -> None:
        metadata = manifest["metadata"]
        key = (kind, metadata["namespace"], metadata["name"])
        if key in self.objects:  # nothing is written
            self.reads.append(f"create {kind.kind}")
            raise AlreadyExistsError(f"{metadata['name']} already exists")
        self._before_write(f"create {kind.kind}/{metadata['name']}")
        self.apply_as(_UPDATES, key, manifest)

    async def dry_run(self, kind: Kind, manifest: Manifest) -> Manifest:
        self.reads.append(f"dry run {kind.kind}")
        if self.refused_dry_run is not None:
            raise self.refused_dry_run
        if not self.image_volumes and kind is DEPLOYMENT:
            manifest = copy.deepcopy(manifest)
            pod = manifest["spec"]["template"]["spec"]
            pod["volumes"] = [item for item in pod.get("volumes") or () if "image" not in item]
        if kind is POD and self.admit_pod is not None:
            return self.admit_pod(manifest)
        if kind == RESOURCE_CLAIM and self.admit is not None:
            self.admit(kind, manifest)
        return manifest

    async def hand_over_replicas(
        self, kind: Kind, namespace: str, name: str, replicas: int
    ) -> None:
        self._before_write(f"hand over {kind.kind}/{name}")
        key = (kind, namespace, name)
        if self.objects[key]["spec"].get("replicas") != replicas:
            raise TransientError(f"{name}: conflict over spec.replicas")
        self.owned_fields[key, constants.HANDOVER_MANAGER] = {("spec", "replicas")}

    async def replace(self, kind: Kind, manifest: Manifest) -> Manifest:
        metadata = manifest["metadata"]
        self._before_write(f"replace {kind.kind}/{metadata['name']}")
        if kind in self.refused_kinds:
            raise RefusedError(self.refused_kinds[kind], 422)
        self.spoilt_kinds.discard(kind)
        key = (kind, metadata["namespace"], metadata["name"])
        if key not in self.objects:
            raise NotFoundError(f"{metadata['name']} not found")
        stored = self.objects[key]
        known = copied(stored)
        if (
            metadata.get("resourceVersion", stored["metadata"]["resourceVersion"])
            != (stored["metadata"]["resourceVersion"])
        ):
            raise TransientError(f"{metadata['name']}: the object has been modified")
        for name in ("labels", "annotations", "ownerReferences", "finalizers"):
            stored["metadata"].pop(name, None)
            if name in metadata:
                stored["metadata"][name] = copied(metadata[name])
        before = stored.get("spec")
        stored.update(copied(_payload(manifest)))
        _set_defaults(kind, stored)
        stored["metadata"]["generation"] += stored.get("spec") != before
        if stored != known:
            self.touch(stored)
        fields = set(leaves(_written(stored))) | set(leaves(_written(known)))
        self._take_over(key, _UPDATES, {path for path in fields if _differs(known, stored, path)})
        return copied(stored)

    async def delete(self, kind: Kind, namespace: str, name: str) -> bool:
        self._before_write(f"delete {kind.kind}/{name}")
        self.objects.pop((kind, namespace, name), None)
        return True

    async def evict(self, namespace: str, name: str, uid: str) -> str | None:
        self._before_write(f"evict Pod/{name}")
        pod = self.objects.get((POD, namespace, name))
        if pod is None or pod["metadata"]["uid"] != uid:
            return None
        if self.evicts is not None:
            return self.evicts(pod)
        del self.objects[POD, namespace, name]
        return None

    async def apply_status(self, key: ObjectKey, status: Mapping[str, Any]) -> Manifest | None:
        self._before_write("status")
        parent = self.objects.get((ATOM_DEPLOYMENT, *key))
        if parent is None:
            return None
        parent["status"] = copied(dict(status))
        self.touch(parent)
        return copied(parent)

    async def apply_profile_status(self, name: str, status: Mapping[str, Any]) -> Manifest | None:
        self._before_write(f"status of AtomProfile {name}")
        found = self.objects.get((ATOM_PROFILE, "", name))
        if found is None:
            return None
        found["status"] = copied(dict(status))
        self.touch(found)
        return copied(found)

    # --- what tests do to the cluster --------------------------------------------------------

    def create(self, kind: Kind, manifest: Manifest) -> Manifest:
        """Somebody else creates an object."""
        metadata = manifest["metadata"]
        key = (kind, metadata["namespace"], metadata["name"])
        return self.apply_as("kubectl", key, manifest)

    def find(self, kind: Kind, name: str, namespace: str = "default") -> Manifest:
        """The stored object itself: changing it is what `kubectl edit` would do."""
        return self.objects[kind, namespace, name]

    def names(self, kind: Kind) -> list[str]:
        return sorted(name for item_kind, _, name in self.objects if item_kind == kind)

    def change_spec(self, kind: Kind, name: str, **changes: Any) -> None:
        """Somebody else changes top-level fields of a spec."""
        stored = self.find(kind, name)
        stored["spec"].update(changes)
        stored["metadata"]["generation"] += 1
        self.touch(stored)

    def remove_with_children(self, name: str, namespace: str = "default") -> None:
        """`kubectl delete atomd`: garbage collection follows owner references."""
        parent = self.objects.pop((ATOM_DEPLOYMENT, namespace, name))
        gone = {parent["metadata"]["uid"]}
        while gone:
            keys = [key for key, item in self.objects.items() if gone & _owner_uids(item)]
            gone = {self.objects.pop(key)["metadata"]["uid"] for key in keys}

    def fail_on(self, attempt: int, error: ClusterError) -> None:
        """Make the n-th write from now on fail, counted from 1."""
        self.failures[self._attempts + attempt] = error

    def put_pod(self, manifest: Manifest) -> None:
        """A pod as a test tells it, in the place of one that its workload's controller made of the
        same template; no kubelet and no scheduler makes anything else of it."""
        metadata = manifest["metadata"]
        if "uid" not in metadata:
            metadata["uid"] = f"uid-{self.version()}"
            self.told.add(metadata["uid"])
            if (manifest.get("status") or {}).get("phase") not in ("Failed", "Succeeded"):
                self._take_place(metadata)
        self.objects[POD, metadata["namespace"], metadata["name"]] = manifest

    def _take_place(self, metadata: Manifest) -> None:
        made = [
            key
            for key, item in self.objects.items()
            if key[:2] == (POD, metadata["namespace"])
            and item["metadata"].get("ownerReferences")
            and _of_revision(item["metadata"]) == _of_revision(metadata)
            and (key[2] == metadata["name"] or item["metadata"]["uid"] not in self.told)
        ]
        # Its own former self, or the youngest.
        made.sort(key=lambda key: key[2] == metadata["name"])
        if made:
            gone = self.objects.pop(made[-1])["metadata"]
            metadata["ownerReferences"] = gone["ownerReferences"]
            metadata["labels"] = {**gone["labels"], **metadata["labels"]}

    def touch(self, stored: Manifest) -> None:
        """Every write gives an object another version."""
        stored["metadata"]["resourceVersion"] = self.version()

    def version(self) -> str:
        """The number of the latest write, which none before had."""
        return str(self._next_number())

    def _next_number(self) -> int:
        self._version += 1
        return self._version

    # --- server-side apply -------------------------------------------------------------------

    def apply_as(self, manager: str, key: _Key, manifest: Manifest) -> Manifest:
        existing = self.objects.get(key)
        if existing is None:  # an object of that name from before takes its owners with it
            for of in [entry for entry in self.owned_fields if entry[0] == key]:
                del self.owned_fields[of]
        rest = self._rest(manager, key, manifest) if existing else None
        if rest is not None and self._at_rest.get((key, manager)) == rest:
            return copied(existing)  # this very apply changed nothing about this very object
        stored = copied(existing) if existing else self._new_object(key)
        wanted = {"metadata": _applied_metadata(manifest), **_payload(manifest)}
        paths = set(leaves(wanted)) - {("metadata",)}  # which has the object's identity too
        for path in self.owned_fields.get((key, manager), set()) - paths:
            # A map that was applied empty may have others' fields now.
            filled = isinstance(found := value_at(stored, path), dict) and found
            if not filled and not self._owned_by_others(key, manager, path):
                remove(stored, path)
        drop_nameless_items(stored)
        merge(stored, wanted)
        _set_defaults(key[0], stored)
        if existing is not None:
            _require_images(key[0], existing, stored)
            taken = {path for path in paths if _differs(existing, stored, path)}
            self._take_over(key, manager, taken)
        owned_anew = self.owned_fields.get((key, manager)) != paths  # which is a write too
        self.owned_fields[key, manager] = paths
        if existing is None or stored.get("spec") != existing.get("spec"):
            stored["metadata"]["generation"] += 1
        if owned_anew or stored != existing:
            self.touch(stored)
            self.objects[key] = stored
        elif rest is not None:
            self._at_rest[key, manager] = rest
        return copied(stored)

    def _rest(self, manager: str, key: _Key, manifest: Manifest) -> tuple[object, ...]:
        """Return the facts that decide if an apply changes an object that exists."""
        owned = frozenset(self.owned_fields.get((key, manager), ()))
        return encode(self.objects[key]), encode(manifest), owned

    def _new_object(self, key: _Key) -> Manifest:
        made = _new_object(key, self._next_number())
        if self.clock is not None:
            made["metadata"]["creationTimestamp"] = self.clock().strftime("%Y-%m-%dT%H:%M:%SZ")
        return made

    def _take_over(self, key: _Key, manager: str, changed: set[Path]) -> None:
        """Make a manager the one owner of the fields that it changed."""
        for (other_key, _), paths in self.owned_fields.items():
            if other_key == key:
                paths -= changed
        self.owned_fields.setdefault((key, manager), set()).update(changed)

    def _owned_by_others(self, key: _Key, manager: str, path: Path) -> bool:
        return any(
            path in paths
            for (other_key, other), paths in self.owned_fields.items()
            if other_key == key and other != manager
        )

    def _before_write(self, what: str) -> None:
        self._attempts += 1
        error = self.failures.pop(self._attempts, None)
        if error is not None:
            raise error
        self.writes.append(what)


def _written(stored: Manifest) -> Manifest:
    """Return the fields that clients write, without an object's identity."""
    return {"metadata": _applied_metadata(stored), **_payload(stored)}


def _differs(before: Manifest, after: Manifest, path: Path) -> bool:
    return value_at(before, path) != value_at(after, path)


def _of_revision(metadata: Manifest) -> tuple[str | None, str | None]:
    """Whose pod it is, and of which revision."""
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    revision = annotations.get(constants.ANNOTATION_REVISION)
    return labels.get(constants.LABEL_DEPLOYMENT), revision


def _list_item(stored: Manifest) -> Manifest:
    """An item of a list says neither its kind nor its version: the list does."""
    item = copied(stored)
    return {name: value for name, value in item.items() if name not in ("kind", "apiVersion")}


def _new_object(key: _Key, number: int) -> Manifest:
    kind, namespace, name = key
    made_at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=number)
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"uid-{number}",
            "creationTimestamp": made_at.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "generation": 0,
        },
    }


def _set_defaults(kind: Kind, stored: Manifest) -> None:
    """What the API server puts where nobody says anything, as far as it matters here."""
    if kind in WORKLOAD_KINDS:
        stored["spec"].setdefault("replicas", 1)


def _require_images(kind: Kind, before: Manifest, stored: Manifest) -> None:
    """Refuse containers that lost their image with the last apply that had it."""
    if kind is not DEPLOYMENT:
        return
    with_image = {item["name"] for item in _containers(before) if "image" in item}
    for number, item in enumerate(_containers(stored)):
        if "image" not in item and item["name"] in with_image:
            place = f"spec.template.spec.containers[{number}].image"
            raise RefusedError(f"{place}: Required value", 422)


def _containers(item: Manifest) -> list[Manifest]:
    template = item["spec"].get("template") or {}
    return list((template.get("spec") or {}).get("containers") or ())


def _applied_metadata(manifest: Manifest) -> Manifest:
    kept = ("labels", "annotations", "ownerReferences")
    return {name: manifest["metadata"][name] for name in kept if name in manifest["metadata"]}


def _payload(manifest: Manifest) -> Manifest:
    outer = ("apiVersion", "kind", "metadata", "status")
    return {name: value for name, value in manifest.items() if name not in outer}


def _owner_uids(manifest: Manifest) -> set[str]:
    return {item["uid"] for item in manifest["metadata"].get("ownerReferences", ())}
