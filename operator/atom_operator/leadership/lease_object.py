"""LeasePort: one Lease, read and written under optimistic concurrency; and its twin of the API.

Called by the elector. A write that meets a newer Lease raises TransientError (409) and changes
nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol

from atom_operator import constants
from atom_operator.cluster.api_connection import ApiConnection, object_path
from atom_operator.cluster.errors import NotFoundError, doing
from atom_operator.kinds import Kind
from atom_operator.leadership.lease import LeaseRecord
from atom_operator.leadership.rivals import Rival

_LEASE = Kind("coordination.k8s.io", "v1", "Lease", "leases")
_MICRO_TIME = "%Y-%m-%dT%H:%M:%S.%fZ"


class LeasePort(Protocol):
    """Raises ClusterError and nothing else that belongs to the API."""

    async def read(self) -> LeaseRecord | None:
        """Return the Lease as the API server has it now, or None."""

    async def create(self, record: LeaseRecord) -> LeaseRecord:
        """Make the Lease; TransientError when another process was faster."""

    async def write(self, record: LeaseRecord) -> LeaseRecord:
        """Replace the version that `record` was made from."""


class ApiLease:
    """The Lease `namespace`/`name` of a real cluster."""

    @classmethod
    def connect(
        cls, namespace: str, name: str, labels: Mapping[str, str] | None = None
    ) -> ApiLease:
        """Open separate connections, so that no renewal waits behind other requests."""
        return cls(ApiConnection.from_environment(), namespace, name, labels)

    def __init__(
        self,
        connection: ApiConnection,
        namespace: str,
        name: str,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        self._connection = connection
        self._namespace = namespace
        self._name = name
        self._labels = dict(labels or {})

    async def read(self) -> LeaseRecord | None:
        path = object_path(_LEASE, self._namespace, self._name)
        with doing(f"get Lease {self._namespace}/{self._name}"):
            try:
                return lease_record(await self._connection.request("GET", path))
            except NotFoundError:
                return None

    async def create(self, record: LeaseRecord) -> LeaseRecord:
        path = object_path(_LEASE, self._namespace)
        with doing(f"create Lease {self._namespace}/{self._name}"):
            made = await self._connection.request("POST", path, body=self._manifest(record))
        return lease_record(made)

    async def write(self, record: LeaseRecord) -> LeaseRecord:
        path = object_path(_LEASE, self._namespace, self._name)
        with doing(f"write Lease {self._namespace}/{self._name}"):
            written = await self._connection.request("PUT", path, body=self._manifest(record))
        return lease_record(written)

    async def rivals(
        self, cluster_namespace: str | None, namespaces: Sequence[str] = ()
    ) -> Sequence[Rival]:
        """List the Leases of other releases: if ours is of single `namespaces`, that of the whole
        cluster, in `cluster_namespace`, and those that watch one of them too; else (None) all of
        single namespaces."""
        if cluster_namespace is not None:
            whole = await self._rival(cluster_namespace, constants.CLUSTER_LEASE)
            return [*whole, *await self._neighbours(namespaces)]
        found = await self._list(None, f"{constants.LABEL_WATCHES}={constants.WATCHES_NAMESPACES}")
        return [
            Rival(f"{item['metadata']['namespace']}/{item['metadata']['name']}", lease_record(item))
            for item in found
        ]

    async def _neighbours(self, namespaces: Sequence[str]) -> list[Rival]:
        """List the Leases of every other release that one of the namespaces points to."""
        shared: dict[str, list[str]] = {}
        for namespace in namespaces:
            for item in await self._list(namespace, f"{constants.LABEL_POINTS_TO_LEASE}=true"):
                lease = _annotations(item).get(constants.ANNOTATION_LEASE) or ""
                if lease != f"{self._namespace}/{self._name}" and lease.count("/") == 1:
                    shared.setdefault(lease, []).append(namespace)
        found: list[Rival] = []
        for lease, where in shared.items():
            namespace, name = lease.split("/")
            found += await self._rival(namespace, name, tuple(where))
        return found

    async def _rival(self, namespace: str, name: str, shared: tuple[str, ...] = ()) -> list[Rival]:
        record = await ApiLease(self._connection, namespace, name).read()
        return [] if record is None else [Rival(f"{namespace}/{name}", record, shared)]

    async def _list(self, namespace: str | None, selector: str) -> Sequence[Mapping[str, Any]]:
        path, query = object_path(_LEASE, namespace), {"labelSelector": selector}
        with doing("list Leases"):
            listed = await self._connection.request("GET", path, query=query)
        return listed.get("items") or ()

    async def close(self) -> None:
        """Close the connections."""
        await self._connection.close()

    def _manifest(self, record: LeaseRecord) -> dict[str, Any]:
        metadata: dict[str, Any] = {"name": self._name, "namespace": self._namespace}
        if self._labels:
            metadata["labels"] = self._labels
        if record.reconciles:
            metadata["annotations"] = {constants.ANNOTATION_RECONCILES: "true"}
        if record.version:
            metadata["resourceVersion"] = record.version
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": metadata,
            "spec": {
                "holderIdentity": record.holder,
                "leaseDurationSeconds": record.duration_seconds,
                "acquireTime": _text(record.acquired),
                "renewTime": _text(record.renewed),
                "leaseTransitions": record.transitions,
            },
        }


def lease_record(manifest: Mapping[str, Any]) -> LeaseRecord:
    """Return the typed view of a Lease; a missing field counts as released."""
    spec: Mapping[str, Any] = manifest.get("spec") or {}
    return LeaseRecord(
        holder=spec.get("holderIdentity") or "",
        duration_seconds=spec.get("leaseDurationSeconds") or 0,
        acquired=_time(spec.get("acquireTime")),
        renewed=_time(spec.get("renewTime")),
        transitions=spec.get("leaseTransitions") or 0,
        version=manifest["metadata"].get("resourceVersion") or "",
        reconciles=_annotations(manifest).get(constants.ANNOTATION_RECONCILES) == "true",
    )


def _annotations(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    return manifest["metadata"].get("annotations") or {}


def _text(time: datetime | None) -> str | None:
    return None if time is None else time.astimezone(UTC).strftime(_MICRO_TIME)


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
