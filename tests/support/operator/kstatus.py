"""Reads an object as kstatus does (sigs.k8s.io/cli-utils, pkg/kstatus/status), by its rules for
kinds that it does not know: deletion, generation, Reconciling and Stalled in their order, Ready.
"""

from __future__ import annotations

from typing import Literal

from atom_operator.domain import Manifest

Health = Literal["InProgress", "Failed", "Current", "Terminating"]


def kstatus(manifest: Manifest) -> Health:
    """Return what a reader that waits for the object takes it for."""
    metadata, status = manifest["metadata"], manifest.get("status") or {}
    if metadata.get("deletionTimestamp"):
        return "Terminating"
    if status.get("observedGeneration", metadata["generation"]) != metadata["generation"]:
        return "InProgress"
    conditions = status.get("conditions") or ()
    for item in conditions:
        if (item["type"], item["status"]) == ("Reconciling", "True"):
            return "InProgress"
        if (item["type"], item["status"]) == ("Stalled", "True"):
            return "Failed"
    for item in conditions:
        if item["type"] == "Ready":
            return "Current" if item["status"] == "True" else "InProgress"
    return "Current"  # also of an object without any status
