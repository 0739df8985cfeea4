"""FaultyCluster: a ClusterPort that misbehaves as an API server or a dying operator does.

In front of a FakeCluster. Writes are counted from 1: after number `kill_after` the process is dead,
numbers in `errors` are answered with that error instead. `stale` answers reads in the cluster's
place, as a cache would that missed the latest changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from atom_operator.cluster.errors import ClusterError
from atom_operator.domain import Kind, Manifest, ObjectKey
from tests.support.fake_cluster import FakeCluster


class Killed(BaseException):
    """SIGKILL: nothing that catches errors catches this."""


@dataclass
class FaultyCluster:
    """`writes` counts all attempts."""

    inner: FakeCluster
    kill_after: int | None = None
    errors: Mapping[int, ClusterError] = field(default_factory=dict)
    stale: FakeCluster | None = None
    writes: int = 0

    @property
    def _source(self) -> FakeCluster:
        return self.stale or self.inner

    async def get(self, kind: Kind, namespace: str, name: str) -> Manifest | None:
        return await self._source.get(kind, namespace, name)

    async def list_labelled(
        self, kind: Kind, namespace: str, labels: Mapping[str, str]
    ) -> list[Manifest]:
        return await self._source.list_labelled(kind, namespace, labels)

    async def list_deployments(self) -> list[ObjectKey]:
        return await self._source.list_deployments()

    async def list_nodes(self) -> list[Manifest]:
        return await self._source.list_nodes()

    async def list_placed_pods(self) -> list[Manifest]:
        return await self._source.list_placed_pods()

    async def apply(self, kind: Kind, manifest: Manifest) -> Manifest:
        self._before()
        result = await self.inner.apply(kind, manifest)
        self._after()
        return result

    async def replace(self, kind: Kind, manifest: Manifest) -> Manifest:
        self._before()
        result = await self.inner.replace(kind, manifest)
        self._after()
        return result

    async def delete(self, kind: Kind, namespace: str, name: str) -> None:
        self._before()
        await self.inner.delete(kind, namespace, name)
        self._after()

    async def apply_status(self, key: ObjectKey, status: Mapping[str, Any]) -> None:
        self._before()
        await self.inner.apply_status(key, status)
        self._after()

    def _before(self) -> None:
        self.writes += 1
        if self.writes in self.errors:
            raise self.errors[self.writes]

    def _after(self) -> None:
        if self.writes == self.kill_after:
            raise Killed
