"""ClusterPort over lightkube: the only API client of this operator.

Generic resources only, so that manifests reach the server exactly as rendered. Knows no policy.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx2
from lightkube.core.async_client import AsyncClient
from lightkube.core.exceptions import ApiError
from lightkube.generic_resource import (
    GenericNamespacedResource,
    create_global_resource,
    create_namespaced_resource,
)
from lightkube.operators import BinaryOperator, SequenceOperator, exists, not_equal, not_in
from lightkube.types import CascadeType, PatchType

from atom_operator import constants
from atom_operator.cluster.errors import TransientError, classify
from atom_operator.cluster.placed_pods import PlacedPod
from atom_operator.domain import (
    ATOM_DEPLOYMENT,
    CHILD_KINDS,
    EVENT,
    JOB,
    NODE,
    POD,
    VOLUME_CLAIM,
    Kind,
    Manifest,
    ObjectKey,
)
from atom_operator.kinds import OPTIONAL_KINDS

_ALL_NAMESPACES = "*"
_PAGE_SIZE = 250
_NOT_FOUND = 404
_FORBIDDEN = 403
_RESOURCES: dict[Kind, type[GenericNamespacedResource]] = {
    kind: create_namespaced_resource(kind.group, kind.version, kind.kind, kind.plural)
    for kind in (*CHILD_KINDS, *OPTIONAL_KINDS, POD, EVENT, JOB, VOLUME_CLAIM, ATOM_DEPLOYMENT)
}
_NODE = create_global_resource(NODE.group, NODE.version, NODE.kind, NODE.plural)
_OWNED: dict[str, Any] = {constants.LABEL_DEPLOYMENT: exists()}
_PLACED: dict[str, str | BinaryOperator | SequenceOperator] = {
    "spec.nodeName": not_equal(""),
    "status.phase": not_in(("Succeeded", "Failed")),
}


class LightkubeCluster:
    """The real cluster. `namespaces` empty means all of them.

    `count` is told the verb and the kind of every request.
    """

    def __init__(
        self,
        client: AsyncClient,
        namespaces: tuple[str, ...] = (),
        count: Callable[[str, str], None] = lambda _verb, _kind: None,
    ) -> None:
        self._client = client
        self._namespaces = namespaces or (_ALL_NAMESPACES,)
        self._count = count

    @classmethod
    def connect(
        cls,
        namespaces: tuple[str, ...] = (),
        count: Callable[[str, str], None] = lambda _verb, _kind: None,
    ) -> LightkubeCluster:
        """From the pod's service account or the kubeconfig of the environment."""
        return cls(AsyncClient(field_manager=constants.FIELD_MANAGER), namespaces, count)

    @contextmanager
    def _request(self, verb: str, kind: Kind, action: str) -> Iterator[None]:
        self._count(verb, kind.kind)
        with translated(action):
            yield

    async def get(self, kind: Kind, namespace: str, name: str) -> Manifest | None:
        with self._request("get", kind, f"get {kind.kind} {namespace}/{name}"):
            try:
                return dict(await self._client.get(_RESOURCES[kind], name, namespace=namespace))
            except ApiError as error:
                if error.response.status_code == _NOT_FOUND:
                    return None
                raise

    async def list_labelled(
        self, kind: Kind, namespace: str, labels: Mapping[str, str]
    ) -> list[Manifest]:
        with self._request("list", kind, f"list {kind.kind} in {namespace}"):
            found = self._client.list(_RESOURCES[kind], namespace=namespace, labels=dict(labels))
            return [dict(item) async for item in found]

    async def list_if_served(
        self, kind: Kind, namespace: str, labels: Mapping[str, str]
    ) -> list[Manifest] | None:
        with self._request("list", kind, f"list {kind.kind} in {namespace}"):
            found = self._client.list(_RESOURCES[kind], namespace=namespace, labels=dict(labels))
            try:
                return [dict(item) async for item in found]
            # A namespace that is gone has empty lists. Of a group that is not served the answer is
            # plain text, which is no ApiError.
            except httpx2.HTTPStatusError as error:
                if error.response.status_code == _NOT_FOUND:
                    return None
                raise

    async def list_deployments(self) -> list[ObjectKey]:
        keys: list[ObjectKey] = []
        with self._request("list", ATOM_DEPLOYMENT, f"list {constants.KIND}"):
            for namespace in self._namespaces:
                found = self._client.list(
                    _RESOURCES[ATOM_DEPLOYMENT], namespace=namespace, chunk_size=_PAGE_SIZE
                )
                async for item in found:
                    metadata: Mapping[str, Any] = item["metadata"]
                    keys.append(ObjectKey(metadata["namespace"], metadata["name"]))
        return keys

    async def list_holders(self, kind: Kind) -> set[ObjectKey]:
        """The AtomDeployments that objects of this kind say they belong to; none where the cluster
        does not serve it, or not to us."""
        keys: set[ObjectKey] = set()
        for namespace in self._namespaces:
            with self._request("list", kind, f"list {kind.kind}"):
                found = self._client.list(
                    _RESOURCES[kind], namespace=namespace, labels=_OWNED, chunk_size=_PAGE_SIZE
                )
                try:
                    async for item in found:
                        metadata: Mapping[str, Any] = item["metadata"]
                        owner = metadata["labels"][constants.LABEL_DEPLOYMENT]
                        keys.add(ObjectKey(metadata["namespace"], owner))
                except httpx2.HTTPStatusError as error:
                    if error.response.status_code not in (_NOT_FOUND, _FORBIDDEN):
                        raise
        return keys

    async def list_nodes(self) -> list[Manifest]:
        with self._request("list", NODE, "list Node"):
            found = self._client.list(_NODE, chunk_size=_PAGE_SIZE)
            return [dict(item) async for item in found]

    async def list_placed_pods(self) -> list[Manifest]:
        with self._request("list", POD, "list Pod of all namespaces"):
            found = self._client.list(
                PlacedPod, namespace=_ALL_NAMESPACES, fields=_PLACED, chunk_size=_PAGE_SIZE
            )
            return [item.manifest() async for item in found]

    async def apply(self, kind: Kind, manifest: Manifest) -> Manifest:
        metadata = manifest["metadata"]
        name = f"{metadata['namespace']}/{metadata['name']}"
        with self._request("apply", kind, f"apply {kind.kind} {name}"):
            applied = await self._client.patch(
                _RESOURCES[kind],
                metadata["name"],
                manifest,
                namespace=metadata["namespace"],
                patch_type=PatchType.APPLY,
                force=True,
            )
            return dict(applied)

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
            await self._client.patch(
                _RESOURCES[kind],
                name,
                body,
                namespace=namespace,
                patch_type=PatchType.APPLY,
                field_manager=constants.HANDOVER_MANAGER,
            )

    async def replace(self, kind: Kind, manifest: Manifest) -> Manifest:
        metadata = manifest["metadata"]
        name = f"{metadata['namespace']}/{metadata['name']}"
        with self._request("replace", kind, f"replace {kind.kind} {name}"):
            resource = _RESOURCES[kind]
            # The server keeps what it allocated itself (a Service's addresses).
            return dict(await self._client.replace(resource.from_dict(copy.deepcopy(manifest))))

    async def delete(self, kind: Kind, namespace: str, name: str) -> None:
        with self._request("delete", kind, f"delete {kind.kind} {namespace}/{name}"):
            try:
                await self._client.delete(
                    _RESOURCES[kind], name, namespace=namespace, cascade=CascadeType.BACKGROUND
                )
            except ApiError as error:
                if error.response.status_code != _NOT_FOUND:
                    raise

    async def apply_status(self, key: ObjectKey, status: Mapping[str, Any]) -> Manifest | None:
        body = {
            "apiVersion": constants.API_VERSION,
            "kind": constants.KIND,
            "metadata": {"name": key.name, "namespace": key.namespace},
            "status": dict(status),
        }
        action = f"write the status of {key.namespace}/{key.name}"
        with self._request("apply_status", ATOM_DEPLOYMENT, action):
            try:
                applied = await self._client.patch(
                    _RESOURCES[ATOM_DEPLOYMENT].Status,
                    key.name,
                    body,
                    namespace=key.namespace,
                    patch_type=PatchType.APPLY,
                    force=True,
                )
            except ApiError as error:
                if error.response.status_code != _NOT_FOUND:
                    raise
                return None
            return dict(applied)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()


@contextmanager
def translated(action: str) -> Iterator[None]:
    try:
        yield
    except httpx2.HTTPStatusError as error:
        raise classify(error.response.status_code, f"{action}: {error}") from error
    except httpx2.HTTPError as error:
        raise TransientError(f"{action}: {type(error).__name__} {error}") from error
