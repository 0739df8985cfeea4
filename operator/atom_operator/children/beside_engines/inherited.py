"""Pods beside the engines inherit from an engine's finished pod template. Pure.

The metadata, placement and security of spec.template hold for them too; none of it makes them one
of the pods that a Service, a Deployment or a disruption budget of engines selects.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atom_operator import constants
from atom_operator.children import naming
from atom_operator.children.endpoint_picker.cache_events import picked_labels
from atom_operator.domain import Manifest, ObjectKey
from atom_operator.integration_values import Integrations

# Of the engine's pod, whatever its overlay made of it.
_OF_THE_POD = (
    "nodeSelector",
    "tolerations",
    "imagePullSecrets",
    "priorityClassName",
    "preemptionPolicy",
    "schedulerName",
    "runtimeClassName",
    "hostAliases",
    "hostUsers",
    "dnsPolicy",
    "dnsConfig",
    "securityContext",
)
# They need no accelerators, which queues manage.
_NOT_INHERITED = ("kueue.x-k8s.io/",)


def engine_of(template: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the container that serves."""
    (engine,) = [
        item
        for item in template["spec"]["containers"]
        if item["name"] == constants.ENGINE_CONTAINER
    ]
    found: Mapping[str, Any] = engine
    return found


def inherited_of_pod(template: Mapping[str, Any]) -> dict[str, Any]:
    """Return the pod's placement and security."""
    pod: Mapping[str, Any] = template["spec"]
    return {key: pod[key] for key in _OF_THE_POD if key in pod}


def inherited_metadata(
    key: ObjectKey, integrations: Integrations, template: Manifest
) -> dict[str, Any]:
    """Return the users' labels and annotations of the engine's pods, without the labels that select
    those pods."""
    ours = {**naming.child_labels(key.name), **picked_labels(integrations)}
    metadata: Mapping[str, Any] = template["metadata"]
    labels = {
        name: value
        for name, value in (metadata.get("labels") or {}).items()
        if name not in ours and not name.startswith(_NOT_INHERITED)
    }
    annotations = {
        name: value
        for name, value in (metadata.get("annotations") or {}).items()
        if name not in (constants.ANNOTATION_REVISION, constants.ANNOTATION_QUOTA_LIMITS)
    }
    return {"labels": labels, **({"annotations": annotations} if annotations else {})}
