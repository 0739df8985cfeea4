"""Pods as far as the search for free devices needs them: identity, node and devices.

A cluster has thousands, most of them not ours. The rest of a pod, nine tenths of it, is skipped
while the answer is decoded. Called by the client; read by plan/inventory.py.
"""

from __future__ import annotations

from typing import Any

import msgspec

from atom_operator.domain import Manifest


class _Metadata(msgspec.Struct, omit_defaults=True):
    name: str
    namespace: str
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    deletionTimestamp: str | None = None  # noqa: N815


class _Port(msgspec.Struct, omit_defaults=True):
    hostPort: int | None = None  # noqa: N815
    containerPort: int | None = None  # noqa: N815
    protocol: str | None = None


class _Container(msgspec.Struct, omit_defaults=True):
    resources: dict[str, Any] | None = None
    restartPolicy: str | None = None  # noqa: N815
    ports: list[_Port] | None = None


class _Affinity(msgspec.Struct, omit_defaults=True):
    podAntiAffinity: dict[str, Any] | None = None  # noqa: N815


class _Spec(msgspec.Struct, omit_defaults=True):
    nodeName: str | None = None  # noqa: N815
    containers: list[_Container] | None = None
    initContainers: list[_Container] | None = None  # noqa: N815
    resources: dict[str, Any] | None = None
    overhead: dict[str, Any] | None = None
    hostNetwork: bool | None = None  # noqa: N815
    affinity: _Affinity | None = None


class _Status(msgspec.Struct, omit_defaults=True):
    phase: str | None = None


class PlacedPod(msgspec.Struct):
    """Decode one item of a pod list; the cache decodes our pods into it."""

    metadata: _Metadata
    spec: _Spec
    status: _Status = msgspec.field(default_factory=_Status)

    def manifest(self) -> Manifest:
        """Return the pod as a manifest, without absent and unread fields."""
        found: Manifest = {
            "metadata": msgspec.to_builtins(self.metadata),
            "spec": msgspec.to_builtins(self.spec),
            "status": msgspec.to_builtins(self.status),
        }
        return found
