"""ClusterPort over an ApiConnection: a reconcile's requests, as the API's paths and parameters.

Manifests reach the server exactly as rendered. Knows no policy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import msgspec

from atom_operator import constants
from atom_operator.cluster.api_connection import APPLY, ApiConnection, object_path
from atom_operator.cluster.errors import ClusterError, NotFoundError, RefusedError, doing
from atom_operator.cluster.partial_objects.listed_nodes import ListedNode
from atom_operator.cluster.partial_objects.placed_pods import PlacedPod
from atom_operator.domain import (
    ATOM_DEPLOYMENT,
    ATOM_PROFILE,
    EVENT,
    NAMESPACE,
    NODE,
    POD,
    Kind,
    Manifest,
    ObjectKey,
)
from atom_operator.domain.lookup_terms import terms_of

PAGE_SIZE = 250
# For objects that are mostly skipped while decoding: an API server answers a first page from
# memory, and the rollouts of a thousand wait for the last one.
_PAGE_SIZE_OF_PARTS = 1000
_FORBIDDEN = 403
_PLACED = "spec.nodeName!=,status.phase!=Failed,status.phase!=Succeeded"
_APPLIED = {"fieldManager": constants.FIELD_MANAGER, "force": "true"}
_DRY_RUN = {
    "fieldManager": constants.FIELD_MANAGER,
    "dryRun": "All",
    "fieldValidation": "Strict",
}

T = TypeVar("T")
Count = Callable[[str, str], None]


class ListMetadata(msgspec.Struct):
    """Decode a list's metadata: the cluster's version, and the token of the next page."""

    resource_version: str = msgspec.field(name="resourceVersion", default="")
    more: str | None = msgspec.field(name="continue", default=None)


class Page(msgspec.Struct, Generic[T]):
    """A part of a list."""

    metadata: ListMetadata
    items: list[T] | None = None


class _Metadata(msgspec.Struct):
    namespace: str
    name: str
    labels: dict[str, str] = {}


class _Named(msgspec.Struct):
    """Decode an object's metadata alone; the rest is skipped while the answer is decoded."""

    metadata: _Metadata


_MANIFESTS = Page[Manifest]
_NAMES = Page[_Named]


def _labels(labels: Mapping[str, str]) -> dict[str, str]:
    text = ",".join(f"{name}={value}" for name, value in labels.items())
    return {"labelSelector": text} if text else {}


class ApiCluster:
    """Access the real cluster. `namespaces` empty means all of them. `count` is called with the
    verb and the kind of every request."""

    def __init__(
        self,
        connection: ApiConnection,
        namespaces: tuple[str, ...] = (),
        count: Count = lambda _verb, _kind: None,
    ) -> None:
        self._connection = connection
        self._namespaces: tuple[str | None, ...] = namespaces or (None,)
        self._count = count

    @classmethod
    def connect(
        cls,
        namespaces: tuple[str, ...] = (),
        count: Count = lambda _verb, _kind: None,
    ) -> ApiCluster:
        """Connect by the pod's service account or the kubeconfig of the environment."""
        return cls(ApiConnection.from_environment(), namespaces, count)

    async def get(self, kind: Kind, namespace: str, name: str) -> Manifest | None:
        with self._request("get", kind, f"get {kind.kind} {namespace}/{name}"):
            try:
                return await self._connection.request("GET", object_path(kind, namespace, name))
            except NotFoundError:
                return None

    async def get_namespace_labels(self, namespace: str) -> Mapping[str, str]:
        found = await self.get(NAMESPACE, "", namespace)
        labels: Mapping[str, str] = (found or {"metadata": {}})["metadata"].get("labels") or {}
        return labels

    async def list_labelled(
        self, kind: Kind, namespace: str, labels: Mapping[str, str]
    ) -> list[Manifest]:
        return await self._list(kind, namespace, _labels(labels), _MANIFESTS)

    async def list_if_served(
        self, kind: Kind, namespace: str, labels: Mapping[str, str]
    ) -> list[Manifest] | None:
        # A namespace that is gone has empty lists.
        try:
            return await self._list(kind, namespace, _labels(labels), _MANIFESTS)
        except NotFoundError:
            return None

    async def list_events(self, namespace: str, kind: str, name: str) -> list[Manifest]:
        about = f"involvedObject.kind={kind},involvedObject.name={name}"
        try:
            return await self._list(EVENT, namespace, {"fieldSelector": about}, _MANIFESTS)
        except RefusedError as error:
            if error.code != _FORBIDDEN:
                raise
            return []  # a chart of before has no right to it

    async def serves(self, kind: Kind) -> bool:
        """Return whether the cluster has the kind."""
        path = f"/apis/{kind.group}/{kind.version}"
        with self._request("get", kind, f"look for {kind.kind}"):
            try:
                found = await self._connection.request("GET", path)
            except NotFoundError:
                return False
        return any(item["name"] == kind.plural for item in found.get("resources") or ())

    async def list_children(self, kind: Kind, namespace: str) -> list[Manifest]:
        query = {"labelSelector": constants.LABEL_DEPLOYMENT}
        try:
            return await self._list(kind, namespace, query, _MANIFESTS)
        except NotFoundError:
            return []

    async def list_children_by(self, kind: Kind, term: str) -> list[Manifest]:
        found: list[Manifest] = []
        for namespace in self._namespaces:  # an empty name is every namespace
            found += await self.list_children(kind, namespace or "")
        return [item for item in found if term in terms_of(item)]

    async def list_deployments(self) -> list[ObjectKey]:
        keys: list[ObjectKey] = []
        for namespace in self._namespaces:
            for item in await self._list(ATOM_DEPLOYMENT, namespace, {}, _NAMES):
                keys.append(ObjectKey(item.metadata.namespace, item.metadata.name))
        return keys

    async def list_holders(self, kind: Kind) -> set[ObjectKey]:
        """Return the AtomDeployments that objects of this kind say they belong to; empty if the
        cluster does not serve it, or not to us."""
        keys: set[ObjectKey] = set()
        for namespace in self._namespaces:
            owned = {"labelSelector": constants.LABEL_DEPLOYMENT}
            try:
                found = await self._list(kind, namespace, owned, _NAMES)
            except NotFoundError:
                continue
            except RefusedError as error:
                if error.code != _FORBIDDEN:
                    raise
                continue
            for metadata in (item.metadata for item in found):
                owner = metadata.labels[constants.LABEL_DEPLOYMENT]
                keys.add(ObjectKey(metadata.namespace, owner))
        return keys

    async def list_everywhere(self, kind: Kind) -> list[Manifest] | None:
        try:
            return await self._list(kind, None, {}, _MANIFESTS)
        except NotFoundError:
            return None

    async def list_nodes(self) -> list[Manifest]:
        found = await self._list(NODE, None, {}, Page[ListedNode])
        return [item.manifest() for item in found]

    async def list_placed_pods(self, *, others: bool = False) -> list[Manifest]:
        everything: list[tuple[str | None, dict[str, str]]] = [(None, {"fieldSelector": _PLACED})]
        asked = self._others() if others else everything
        found = [await self._list(POD, where, query, Page[PlacedPod]) for where, query in asked]
        return [item.manifest() for items in found for item in items]

    def _others(self) -> list[tuple[str | None, dict[str, str]]]:
        """Return the namespaces and selectors to list for the pods of no AtomDeployment of ours."""
        mine = [namespace for namespace in self._namespaces if namespace is not None]
        unlabelled = {"fieldSelector": _PLACED, "labelSelector": f"!{constants.LABEL_DEPLOYMENT}"}
        if not mine:
            return [(None, unlabelled)]
        elsewhere = ",".join((_PLACED, *(f"metadata.namespace!={name}" for name in mine)))
        return [(None, {"fieldSelector": elsewhere}), *((name, unlabelled) for name in mine)]

    async def apply(self, kind: Kind, manifest: Manifest) -> Manifest:
        metadata = manifest["metadata"]
        namespace, name = metadata["namespace"], metadata["name"]
        with self._request("apply", kind, f"apply {kind.kind} {namespace}/{name}"):
            path = object_path(kind, namespace, name)
            return await self._connection.request(
                "PATCH", path, query=_APPLIED, body=manifest, content=APPLY
            )

    async def make(self, kind: Kind, manifest: Manifest) -> None:
        metadata = manifest["metadata"]
        namespace, name = metadata["namespace"], metadata["name"]
        with self._request("create", kind, f"create {kind.kind} {namespace}/{name}"):
            path, query = object_path(kind, namespace), {"fieldManager": constants.FIELD_MANAGER}
            await self._connection.request("POST", path, query=query, body=manifest)

    async def dry_run(self, kind: Kind, manifest: Manifest) -> Manifest:
        namespace = manifest["metadata"]["namespace"]
        with self._request("dry_run", kind, f"dry run of {kind.kind} in {namespace}"):
            path = object_path(kind, namespace)
            return await self._connection.request("POST", path, query=_DRY_RUN, body=manifest)

    async def hand_over_replicas(
        self, kind: Kind, namespace: str, name: str, replicas: int
    ) -> None:
        body = {
            "apiVersion": kind.api_version,
            "kind": kind.kind,
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"replicas": replicas},
        }
        action = f"hand over the replicas of {kind.kind} {namespace}/{name}"
        with self._request("apply", kind, action):
            await self._connection.request(
                "PATCH",
                object_path(kind, namespace, name),
                query={"fieldManager": constants.HANDOVER_MANAGER},
                body=body,
                content=APPLY,
            )

    async def replace(self, kind: Kind, manifest: Manifest) -> Manifest:
        metadata = manifest["metadata"]
        namespace, name = metadata["namespace"], metadata["name"]
        with self._request("replace", kind, f"replace {kind.kind} {namespace}/{name}"):
            # The server keeps the values that it allocated itself (a Service's addresses).
            return await self._connection.request(
                "PUT",
                object_path(kind, namespace, name),
                query={"fieldManager": constants.FIELD_MANAGER},
                body=manifest,
            )

    async def delete(self, kind: Kind, namespace: str, name: str) -> bool:
        with self._request("delete", kind, f"delete {kind.kind} {namespace}/{name}"):
            query = {"propagationPolicy": "Background"}
            path = object_path(kind, namespace, name)
            try:
                answer = await self._connection.request("DELETE", path, query=query)
            except NotFoundError:
                return True
        # What a finalizer keeps is answered as it is.
        return bool(answer.get("kind") == "Status")

    async def evict(self, namespace: str, name: str, uid: str) -> str | None:
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": {"preconditions": {"uid": uid}},
        }
        try:
            with self._request("evict", POD, f"evict pod {namespace}/{name}"):
                path = object_path(POD, namespace, name, "eviction")
                await self._connection.request("POST", path, body=body)
        except NotFoundError:
            return None
        except ClusterError as error:
            return str(error)
        return None

    async def apply_status(self, key: ObjectKey, status: Mapping[str, Any]) -> Manifest | None:
        metadata = {"name": key.name, "namespace": key.namespace}
        action = f"write the status of {key.namespace}/{key.name}"
        return await self._apply_status(ATOM_DEPLOYMENT, metadata, status, action)

    async def apply_profile_status(self, name: str, status: Mapping[str, Any]) -> Manifest | None:
        action = f"write the status of AtomProfile {name}"
        return await self._apply_status(ATOM_PROFILE, {"name": name}, status, action)

    async def _apply_status(
        self, kind: Kind, metadata: Mapping[str, str], status: Mapping[str, Any], action: str
    ) -> Manifest | None:
        """Apply the status of an object; None if the object is gone."""
        body = {
            "apiVersion": kind.api_version,
            "kind": kind.kind,
            "metadata": dict(metadata),
            "status": dict(status),
        }
        with self._request("apply_status", kind, action):
            path = object_path(kind, metadata.get("namespace", ""), metadata["name"], "status")
            try:
                return await self._connection.request(
                    "PATCH", path, query=_APPLIED, body=body, content=APPLY
                )
            except NotFoundError:
                return None

    async def close(self) -> None:
        """Close the connections."""
        await self._connection.close()

    async def _list(
        self, kind: Kind, namespace: str | None, query: Mapping[str, str], page_type: type[Page[T]]
    ) -> list[T]:
        """List objects in pages, all of one version."""
        action = f"list {kind.kind}" + (f" in {namespace}" if namespace else "")
        size = PAGE_SIZE if page_type is _MANIFESTS else _PAGE_SIZE_OF_PARTS
        asked = {**query, "limit": str(size)}
        items: list[T] = []
        with self._request("list", kind, action):
            while True:
                page = await self._connection.read(object_path(kind, namespace), asked, page_type)
                items.extend(page.items or ())
                if not page.metadata.more:
                    return items
                asked["continue"] = page.metadata.more

    @contextmanager
    def _request(self, verb: str, kind: Kind, action: str) -> Iterator[None]:
        self._count(verb, kind.kind)
        with doing(action):
            yield
