"""LeasePort: one Lease, read and written under optimistic concurrency; and its lightkube twin.

Called by the elector. A write that meets a newer Lease raises TransientError (409) and changes
nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Protocol

from lightkube.core.async_client import AsyncClient
from lightkube.core.exceptions import ApiError
from lightkube.generic_resource import create_namespaced_resource

from atom_operator.cluster.client import translated
from atom_operator.leadership.lease import LeaseRecord

_LEASE = create_namespaced_resource("coordination.k8s.io", "v1", "Lease", "leases")
_MICRO_TIME = "%Y-%m-%dT%H:%M:%S.%fZ"
_NOT_FOUND = 404


class LeasePort(Protocol):
    """Raises ClusterError and nothing else that belongs to the API."""

    async def read(self) -> LeaseRecord | None:
        """The Lease as the API server has it now, None when there is none."""

    async def create(self, record: LeaseRecord) -> LeaseRecord:
        """Make the Lease; TransientError when another process was faster."""

    async def write(self, record: LeaseRecord) -> LeaseRecord:
        """Put `record` in place of the version that it was made from."""


class LightkubeLease:
    """The Lease `namespace`/`name` of a real cluster."""

    @classmethod
    def connect(cls, namespace: str, name: str) -> LightkubeLease:
        """With connections of its own, so that no renewal waits behind other requests."""
        return cls(AsyncClient(), namespace, name)

    def __init__(self, client: AsyncClient, namespace: str, name: str) -> None:
        self._client = client
        self._namespace = namespace
        self._name = name

    async def read(self) -> LeaseRecord | None:
        with translated(f"get Lease {self._namespace}/{self._name}"):
            try:
                found = await self._client.get(_LEASE, self._name, namespace=self._namespace)
            except ApiError as error:
                if error.response.status_code == _NOT_FOUND:
                    return None
                raise
        return lease_record(dict(found))

    async def create(self, record: LeaseRecord) -> LeaseRecord:
        with translated(f"create Lease {self._namespace}/{self._name}"):
            made = await self._client.create(_LEASE.from_dict(self._manifest(record)))
        return lease_record(dict(made))

    async def write(self, record: LeaseRecord) -> LeaseRecord:
        with translated(f"write Lease {self._namespace}/{self._name}"):
            written = await self._client.replace(_LEASE.from_dict(self._manifest(record)))
        return lease_record(dict(written))

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

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
