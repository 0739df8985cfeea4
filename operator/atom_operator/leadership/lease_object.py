"""LeasePort: one Lease, read and written under optimistic concurrency; and its twin of the API.

Called by the elector. A write that meets a newer Lease raises TransientError (409) and changes
nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Protocol

from atom_operator.cluster.api_connection import ApiConnection, object_path
from atom_operator.cluster.errors import NotFoundError, doing
from atom_operator.kinds import Kind
from atom_operator.leadership.lease import LeaseRecord

_LEASE = Kind("coordination.k8s.io", "v1", "Lease", "leases")
_MICRO_TIME = "%Y-%m-%dT%H:%M:%S.%fZ"


class LeasePort(Protocol):
    """Raises ClusterError and nothing else that belongs to the API."""

    async def read(self) -> LeaseRecord | None:
        """The Lease as the API server has it now, None when there is none."""

    async def create(self, record: LeaseRecord) -> LeaseRecord:
        """Make the Lease; TransientError when another process was faster."""

    async def write(self, record: LeaseRecord) -> LeaseRecord:
        """Put `record` in place of the version that it was made from."""


class ApiLease:
    """The Lease `namespace`/`name` of a real cluster."""

    @classmethod
    def connect(cls, namespace: str, name: str) -> ApiLease:
        """With connections of its own, so that no renewal waits behind other requests."""
        return cls(ApiConnection.from_environment(), namespace, name)

    def __init__(self, connection: ApiConnection, namespace: str, name: str) -> None:
        self._connection = connection
        self._namespace = namespace
        self._name = name

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

    async def close(self) -> None:
        """Close the connections."""
        await self._connection.close()

    def _manifest(self, record: LeaseRecord) -> dict[str, Any]:
        metadata = {"name": self._name, "namespace": self._namespace}
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
    """The typed view of a Lease; what is missing in it counts as released."""
    spec: Mapping[str, Any] = manifest.get("spec") or {}
    return LeaseRecord(
        holder=spec.get("holderIdentity") or "",
        duration_seconds=spec.get("leaseDurationSeconds") or 0,
        acquired=_time(spec.get("acquireTime")),
        renewed=_time(spec.get("renewTime")),
        transitions=spec.get("leaseTransitions") or 0,
        version=manifest["metadata"].get("resourceVersion") or "",
    )


def _text(time: datetime | None) -> str | None:
    return None if time is None else time.astimezone(UTC).strftime(_MICRO_TIME)


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
