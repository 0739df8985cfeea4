"""The resource of a pod's devices: AMD's own names, and whatever else a spec names. Pure.

`spec.accelerator.resourceName` may be any name (a shared device, another vendor's plugin). What a
pod of ours asks for is read off the pod itself, which outlives the spec that it was made for.
Called where pods and nodes are read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from atom_operator.constants import ENGINE_CONTAINER
from atom_operator.domain.devices import CLASS_PREFIX
from atom_operator.domain.resources import Resources

_ACCELERATOR = re.compile(
    rf"^(amd\.com/(gpu|(spx|dpx|qpx|cpx)_nps[124])|{re.escape(CLASS_PREFIX)}.+)$"
)


def is_amd(resource: str) -> bool:
    """Return whether a resource is devices by AMD's plugin, or of a class that pods claim."""
    return _ACCELERATOR.match(resource) is not None


def accelerator_asked(pod_spec: Mapping[str, Any]) -> str | None:
    """Return the resource of the devices that the engine of a pod is limited to: AMD's own, or the
    one whose name is also the taint that the pod tolerates."""
    limits = {
        name
        for container in pod_spec.get("containers") or ()
        if container.get("name") == ENGINE_CONTAINER
        for name in (container.get("resources") or {}).get("limits") or {}
        if "/" in name
    }
    tolerated = {item.get("key") for item in pod_spec.get("tolerations") or ()}
    ranked = sorted(limits, key=lambda name: (not is_amd(name), name not in tolerated))
    return ranked[0] if ranked else None


def accelerator_in(charged: Resources, asked: str | None = None) -> tuple[str, int] | None:
    """Return the resource of devices, and its amount, that a pod is charged in a ResourceQuota;
    None if it has none. `asked`: the resource that the pod requests, if it is not AMD's."""
    for name, count in charged.items():
        resource = name.removeprefix("requests.")
        known = resource == asked or is_amd(resource)
        if resource != name and count and known:
            return resource, count
    return None
