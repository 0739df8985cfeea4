"""Nodes as far as decisions read them: their labels, resources and taints.

A list of them is read again every few seconds while a rollout runs. The rest of a node, such as its
images and field managers, is skipped while the answer is decoded. Called by the client; read by
plan/inventory.py and plan/eligibility.py.
"""

from __future__ import annotations

from typing import Any

import msgspec

from atom_operator.domain import Manifest


class _Metadata(msgspec.Struct, omit_defaults=True):
    name: str
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class _Spec(msgspec.Struct, omit_defaults=True):
    unschedulable: bool | None = None
    taints: list[dict[str, Any]] | None = None


class _Status(msgspec.Struct, omit_defaults=True):
    capacity: dict[str, Any] | None = None
    allocatable: dict[str, Any] | None = None
    conditions: list[dict[str, Any]] | None = None


class ListedNode(msgspec.Struct):
    """Decode one item of a node list."""

    metadata: _Metadata
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)

    def manifest(self) -> Manifest:
        """Return the node as a manifest, without absent and unread fields."""
        found: Manifest = msgspec.to_builtins(self)
        return found
