"""Other clients that have set fields of our objects, reduced from metadata.managedFields.

A field that we set ourselves is corrected at once; a field that another client added stays, as
server-side apply has it, and is only reported. Controllers that change a number through a
subresource, and the object's own controller, are entitled to. Pure; called by observe, and by the
cache, which stores only this reduction of the field managers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from atom_operator import constants
from atom_operator.domain import ForeignEdit, Manifest

_OURS = (constants.FIELD_MANAGER, constants.HANDOVER_MANAGER)
_CONTROLLERS = ("kube-controller-manager", "manager")  # of Deployments, and of LeaderWorkerSets
_ITSELF = "."
_REPLICAS = "f:replicas"
# What `kubectl rollout restart` writes, which is asked of us to keep.
_RESTARTED = "f:kubectl.kubernetes.io/restartedAt"


def scaled_by(manifest: Manifest) -> str | None:
    """Name the other manager that has set the replicas, on the object or by its scale
    subresource."""
    for entry in fields_of_others(manifest["metadata"].get("managedFields")):
        if _REPLICAS in entry["fieldsV1"]["f:spec"]:
            name = str(entry["manager"])
            if entry.get("subresource") and name in _CONTROLLERS:
                return "a HorizontalPodAutoscaler (manager kube-controller-manager, scale)"
            return f"manager {name}"
    return None


def foreign_edits(manifest: Manifest) -> tuple[ForeignEdit, ...]:
    """List every field of the spec that another client alone has set."""
    entries = manifest["metadata"].get("managedFields")
    return tuple(
        ForeignEdit(entry["manager"], path)
        for entry in fields_of_others(entries)
        if not entry.get("subresource")
        for path in _paths(entry["fieldsV1"]["f:spec"], "spec")
    )


def fields_of_others(entries: Any) -> list[dict[str, Any]]:
    """Return the entries of other managers, with the fields of the spec that are not ours too."""
    known = [item for item in entries if isinstance(item, Mapping)] if entries else []
    ours = [_spec(item) for item in known if item.get("manager") in _OURS]
    found = []
    for item in known:
        name = str(item.get("manager"))
        scales = item.get("subresource") == "scale"
        if name in _OURS or (not scales and (name in _CONTROLLERS or item.get("subresource"))):
            continue
        rest = _without(_spec(item), ours)
        if rest:
            kept: dict[str, Any] = {"manager": name, "fieldsV1": {"f:spec": rest}}
            found.append({**kept, "subresource": "scale"} if scales else kept)
    return found


def _spec(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    fields = entry.get("fieldsV1")
    spec = fields.get("f:spec") if isinstance(fields, Mapping) else None
    return spec if isinstance(spec, Mapping) else {}


def _without(fields: Mapping[str, Any], ours: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the parts of `fields` that none of `ours` has, without structs that become empty."""
    rest: dict[str, Any] = {}
    for name, inner in fields.items():
        known = [item[name] for item in ours if name in item]
        left = _without(inner, known)
        if left or not (inner or known or name == _RESTARTED):
            rest[name] = left
    return rest


def _paths(fields: Mapping[str, Any], path: str) -> Iterator[str]:
    """Yield the fields as a user would name them; of an item that is new as a whole, the item."""
    if not fields or _ITSELF in fields:
        yield path
        return
    for name, inner in fields.items():
        kind, _, text = name.partition(":")
        yield from _paths(inner, f"{path}.{text}" if kind == "f" else f"{path}[{_identity(text)}]")


def _identity(text: str) -> str:
    """Name a list's item: the values of its keys, or the value that it is."""
    try:
        keys = json.loads(text)
    except ValueError:
        return text
    return "/".join(map(str, keys.values())) if isinstance(keys, dict) else str(keys)
