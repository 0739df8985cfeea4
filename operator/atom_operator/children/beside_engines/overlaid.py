"""Lays a user's overlay over the template of a pod beside the engines. Pure.

One path for Jobs, frontends and the endpoint picker: the overlay is merged as spec.template is, the
container that does the work stays, requests follow lower limits, and no container may take more
rights than its parent. Called by job, frontend and picker.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atom_operator.children.overlay import OverlayError, copied, merge_pod_template
from atom_operator.children.workload import check_names, without_escalation
from atom_operator.domain import Manifest
from atom_operator.domain.resources import amount


def overlaid(
    template: Manifest,
    overlay: Mapping[str, Any] | None,
    container: str,
    selected: Mapping[str, str] | None = None,
) -> Manifest:
    """Return the finished template. `container` does the work; `selected`: the labels by which its
    pods are found. Raises OverlayError."""
    result = merge_pod_template(copied(template), overlay or {})
    check_names(result, container, "does the work")
    metadata = result.get("metadata") or {}  # an overlay may take all of it out
    labels = metadata.get("labels") or {}
    for name, value in (selected or {}).items():
        if labels.get(name) != value:
            raise OverlayError(
                f"metadata.labels[{name}]: pods are selected by it; leave it as it is"
            )
    _lower_requests(result, overlay or {}, container)
    return without_escalation({**result, "metadata": {**metadata, "labels": dict(labels)}})


def _lower_requests(template: Manifest, overlay: Mapping[str, Any], container: str) -> None:
    """Lower requests to the user's lower limits, if the overlay states no requests."""
    said = _resources_of(overlay, container).get("requests") or {}
    resources = _resources_of(template, container)
    requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
    for name in set(requests) & set(limits) - set(said):
        if amount(name, str(limits[name])) < amount(name, str(requests[name])):
            requests[name] = limits[name]


def _resources_of(template: Mapping[str, Any], container: str) -> dict[str, Any]:
    containers = (template.get("spec") or {}).get("containers") or ()
    work = [item for item in containers if item.get("name") == container]
    return (work[0].get("resources") or {}) if work else {}
