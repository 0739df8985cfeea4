"""The operator's marks on running pods: their deletion cost, and their adapters. Pure.

All marks are one apply, since the API server removes the fields that a later apply leaves out.
"""

from __future__ import annotations

from typing import Any

from atom_operator import constants
from atom_operator.domain import Manifest, PodState


def marked(namespace: str, pod: PodState) -> Manifest:
    """Build the manifest to apply, so that the pod carries the marks of `pod`."""
    annotations: dict[str, str] = {}
    if pod.marks.deletion_cost:
        annotations[constants.ANNOTATION_DELETION_COST] = str(pod.marks.deletion_cost)
    if pod.marks.adapters_digest is not None:
        annotations[constants.ANNOTATION_ADAPTERS] = pod.marks.adapters_digest
    prefix, served = constants.LABEL_ADAPTER_PREFIX, constants.ADAPTER_SERVED
    metadata: dict[str, Any] = {"name": pod.name, "namespace": namespace}
    if annotations:
        metadata["annotations"] = annotations
    if pod.marks.adapters:
        metadata["labels"] = {f"{prefix}{name}": served for name in pod.marks.adapters}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}
