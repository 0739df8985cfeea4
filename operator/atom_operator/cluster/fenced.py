"""FencedCluster: a ClusterPort whose writes are refused while another replica may reconcile.

The elector stops the workers of a replica that lost its Lease; this is for the write that a frozen
event loop was about to send. Reads pass. Wired by the runtime; decides nothing itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from atom_operator.cluster.errors import TransientError
from atom_operator.cluster.port import ClusterPort
from atom_operator.domain import Kind, Manifest, ObjectKey


class FencedCluster:
    """Write to `port` as long as `may_write` returns True; TransientError for any write after
    that."""

    def __init__(self, port: ClusterPort, may_write: Callable[[], bool]) -> None:
        self._port = port
        self._may_write = may_write

    async def get(self, kind: Kind, namespace: str, name: str) -> Manifest | None:
        return await self._port.get(kind, namespace, name)

    async def get_namespace_labels(self, namespace: str) -> Mapping[str, str]:
        return await self._port.get_namespace_labels(namespace)

    async def list_labelled(
        self, kind: Kind, namespace: str, labels: Mapping[str, str]
    ) -> list[Manifest]:
        return await self._port.list_labelled(kind, namespace, labels)

    async def list_if_served(
        self, kind: Kind, namespace: str, labels: Mapping[str, str]
    ) -> list[Manifest] | None:
        return await self._port.list_if_served(kind, namespace, labels)

    async def list_events(self, namespace: str, kind: str, name: str) -> list[Manifest]:
        return await self._port.list_events(namespace, kind, name)

    async def list_children(self, kind: Kind, namespace: str) -> list[Manifest]:
        return await self._port.list_children(kind, namespace)

    async def list_children_by(self, kind: Kind, term: str) -> list[Manifest]:
        return await self._port.list_children_by(kind, term)

    async def list_deployments(self) -> list[ObjectKey]:
        return await self._port.list_deployments()

    async def list_everywhere(self, kind: Kind) -> list[Manifest] | None:
        return await self._port.list_everywhere(kind)

    async def list_nodes(self) -> list[Manifest]:
        return await self._port.list_nodes()

    async def list_placed_pods(self, *, others: bool = False) -> list[Manifest]:
        return await self._port.list_placed_pods(others=others)

    async def apply(self, kind: Kind, manifest: Manifest) -> Manifest:
        self._check(f"apply {kind.kind}/{manifest['metadata']['name']}")
        return await self._port.apply(kind, manifest)

    async def make(self, kind: Kind, manifest: Manifest) -> None:
        self._check(f"create {kind.kind}/{manifest['metadata']['name']}")
        await self._port.make(kind, manifest)

    async def dry_run(self, kind: Kind, manifest: Manifest) -> Manifest:
        return await self._port.dry_run(kind, manifest)

    async def hand_over_replicas(
        self, kind: Kind, namespace: str, name: str, replicas: int
    ) -> None:
        self._check(f"replicas of {kind.kind}/{name}")
        await self._port.hand_over_replicas(kind, namespace, name, replicas)

    async def replace(self, kind: Kind, manifest: Manifest) -> Manifest:
        self._check(f"replace {kind.kind}/{manifest['metadata']['name']}")
        return await self._port.replace(kind, manifest)

    async def delete(self, kind: Kind, namespace: str, name: str) -> bool:
        self._check(f"delete {kind.kind}/{name}")
        return await self._port.delete(kind, namespace, name)

    async def evict(self, namespace: str, name: str, uid: str) -> str | None:
        self._check(f"evict pod {namespace}/{name}")
        return await self._port.evict(namespace, name, uid)

    async def apply_status(self, key: ObjectKey, status: Mapping[str, Any]) -> Manifest | None:
        self._check(f"status of {key.namespace}/{key.name}")
        return await self._port.apply_status(key, status)

    async def apply_profile_status(self, name: str, status: Mapping[str, Any]) -> Manifest | None:
        self._check(f"status of AtomProfile {name}")
        return await self._port.apply_profile_status(name, status)

    def _check(self, what: str) -> None:
        if not self._may_write():
            raise TransientError(f"{what}: not written, this replica does not hold the Lease")
