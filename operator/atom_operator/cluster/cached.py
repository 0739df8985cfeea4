"""CachedCluster: a ClusterPort that reads children and pods from informers, and notes which version
of an AtomDeployment was read.

What people write (the AtomDeployment, what it refers to) is still read from the API server, and so
is everything while no watch is open: the cache saves requests and is never needed. What a write
answers is kept, so that we read our own writes. Wired by the runtime.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from atom_operator.cluster.informer import Informer, Informers
from atom_operator.cluster.known_deployments import KnownDeployments
from atom_operator.cluster.object_cache import INDEXED_LABELS, ObjectCache
from atom_operator.cluster.partial_objects.placed_pods import PlacedPod
from atom_operator.cluster.port import ClusterPort
from atom_operator.domain import (
    ATOM_DEPLOYMENT,
    ATOM_PROFILE,
    NAMESPACE,
    POD,
    Kind,
    Manifest,
    ObjectKey,
)


class CachedCluster:
    """Read from informers if they follow the kind, and otherwise from `port`."""

    def __init__(
        self, port: ClusterPort, informers: Informers, deployments: KnownDeployments
    ) -> None:
        self._port = port
        self._informers = informers
        self._deployments = deployments

    async def get(self, kind: Kind, namespace: str, name: str) -> Manifest | None:
        if kind == ATOM_PROFILE and (cache := self._whole(kind)) is not None:
            return cache.get("", name)
        found = await self._port.get(kind, namespace, name)
        if kind == ATOM_DEPLOYMENT:
            if found is None:
                self._deployments.forget(ObjectKey(namespace, name))
            else:
                self._deployments.read(found)
        return found

    async def get_namespace_labels(self, namespace: str) -> Mapping[str, str]:
        cache = self._whole(NAMESPACE)
        found = cache.get("", namespace) if cache is not None else None
        if found is None:  # the watch may be late
            return await self._port.get_namespace_labels(namespace)
        labels: Mapping[str, str] = found["metadata"].get("labels") or {}
        return labels

    async def list_labelled(
        self, kind: Kind, namespace: str, labels: Mapping[str, str]
    ) -> list[Manifest]:
        known = self._select(kind, namespace, labels)
        return await self._port.list_labelled(kind, namespace, labels) if known is None else known

    async def list_if_served(
        self, kind: Kind, namespace: str, labels: Mapping[str, str]
    ) -> list[Manifest] | None:
        known = self._select(kind, namespace, labels)
        if known is not None:
            return known
        found = await self._port.list_if_served(kind, namespace, labels)
        informer = self._informers.find(kind, namespace)
        if found is not None and informer is not None:
            informer.notice_served()
        return found

    async def list_events(self, namespace: str, kind: str, name: str) -> list[Manifest]:
        return await self._port.list_events(namespace, kind, name)

    async def list_children(self, kind: Kind, namespace: str) -> list[Manifest]:
        informer = self._informers.find(kind, namespace)
        if informer is None or not (informer.is_current or informer.is_unserved):
            return await self._port.list_children(kind, namespace)
        return informer.cache.in_namespace(namespace)

    async def list_children_by(self, kind: Kind, term: str) -> list[Manifest]:
        informers = self._informers.of(kind)
        known = (informer.is_current or informer.is_unserved for informer in informers)
        if not informers or not all(known):
            return await self._port.list_children_by(kind, term)
        return [manifest for informer in informers for manifest in informer.cache.find(term)]

    async def list_deployments(self) -> list[ObjectKey]:
        return await self._port.list_deployments()

    async def list_everywhere(self, kind: Kind) -> list[Manifest] | None:
        return await self._port.list_everywhere(kind)

    async def list_nodes(self) -> list[Manifest]:
        return await self._port.list_nodes()

    async def list_placed_pods(self, *, others: bool = False) -> list[Manifest]:
        informers = self._informers.of(POD)
        if others or not informers or not _are_current(informers):
            return await self._port.list_placed_pods(others=others)
        found = await self._port.list_placed_pods(others=True)
        if not _are_current(informers):
            return await self._port.list_placed_pods()
        ours = (pod for informer in informers for pod in informer.cache.every_as(PlacedPod))
        return [*found, *(pod.manifest() for pod in ours)]

    async def apply(self, kind: Kind, manifest: Manifest) -> Manifest:
        with self._writing(kind, manifest["metadata"]["namespace"], manifest["metadata"]["name"]):
            return self._keep(kind, await self._port.apply(kind, manifest))

    async def make(self, kind: Kind, manifest: Manifest) -> None:
        await self._port.make(kind, manifest)

    async def dry_run(self, kind: Kind, manifest: Manifest) -> Manifest:
        return await self._port.dry_run(kind, manifest)

    async def hand_over_replicas(
        self, kind: Kind, namespace: str, name: str, replicas: int
    ) -> None:
        await self._port.hand_over_replicas(kind, namespace, name, replicas)

    async def replace(self, kind: Kind, manifest: Manifest) -> Manifest:
        with self._writing(kind, manifest["metadata"]["namespace"], manifest["metadata"]["name"]):
            return self._keep(kind, await self._port.replace(kind, manifest))

    async def delete(self, kind: Kind, namespace: str, name: str) -> bool:
        with self._writing(kind, namespace, name):
            gone = await self._port.delete(kind, namespace, name)
            informer = self._informers.find(kind, namespace)
            if gone and informer is not None:
                informer.drop(namespace, name)
        return gone

    async def evict(self, namespace: str, name: str, uid: str) -> str | None:
        return await self._port.evict(namespace, name, uid)

    async def apply_status(self, key: ObjectKey, status: Mapping[str, Any]) -> Manifest | None:
        answer = await self._port.apply_status(key, status)
        if answer is not None:
            self._deployments.reported(answer)
        return answer

    async def apply_profile_status(self, name: str, status: Mapping[str, Any]) -> Manifest | None:
        # No news to the AtomDeployments that take it.
        with self._writing(ATOM_PROFILE, "", name):
            answer = await self._port.apply_profile_status(name, status)
            informer = self._informers.find(ATOM_PROFILE, "")
            if answer is not None and informer is not None:
                informer.keep(answer)
        return answer

    def _whole(self, kind: Kind) -> ObjectCache | None:
        """Return the cache of a kind that belongs to no namespace; None if only the API server can
        say."""
        informer = self._informers.find(kind, "")
        known = informer is not None and (informer.is_current or informer.is_unserved)
        return informer.cache if informer is not None and known else None

    def _select(
        self, kind: Kind, namespace: str, labels: Mapping[str, str]
    ) -> list[Manifest] | None:
        """Select objects from the cache; None where only the API server can say."""
        informer = self._informers.find(kind, namespace)
        if informer is None or not informer.is_current:
            return None
        if not labels or not labels.keys() <= INDEXED_LABELS:
            return None
        return informer.cache.select(namespace, labels)

    def _writing(self, kind: Kind, namespace: str, name: str) -> AbstractContextManager[None]:
        informer = self._informers.find(kind, namespace)
        return nullcontext() if informer is None else informer.writing(namespace, name)

    def _keep(self, kind: Kind, answer: Manifest) -> Manifest:
        informer = self._informers.find(kind, answer["metadata"]["namespace"])
        if informer is not None:
            informer.keep(answer)
        return answer


def _are_current(informers: Iterable[Informer]) -> bool:
    return all(informer.is_current for informer in informers)
