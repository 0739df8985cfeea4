"""Strategic merge of a user's pod template over the rendered one. Pure; inputs are not changed.

Lists merge by Kubernetes' own merge keys (containers by name, mounts by path …); other lists and
all scalars are replaced. `null` removes a key, `$patch: delete` removes a list item. Kubernetes
API: sig-api-machinery/strategic-merge-patch.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

# List field → keys that identify an item.
_MERGE_KEYS: Mapping[str, tuple[str, ...]] = {
    "containers": ("name",),
    "initContainers": ("name",),
    "volumes": ("name",),
    "volumeMounts": ("mountPath",),
    "volumeDevices": ("devicePath",),
    "env": ("name",),
    "ports": ("containerPort", "protocol"),
    "imagePullSecrets": ("name",),
    "hostAliases": ("ip",),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
}
_ITEM_DEFAULTS: Mapping[str, Mapping[str, Any]] = {"ports": {"protocol": "TCP"}}
# No merge key in the API, but replacing ours would make pods unschedulable.
_APPENDED = ("tolerations",)
# A variable has a value or a source: merging one of each would make it invalid.
_REPLACED_ITEMS = ("env",)
_PATCH = "$patch"


def merge_pod_template(base: Mapping[str, Any], overlay: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `overlay` laid over it."""
    return _merge_maps(base, overlay)


def overlay_paths(overlay: Mapping[str, Any]) -> tuple[str, ...]:
    """The fields that an overlay touches, two levels deep, as a user would name them."""
    return tuple(sorted(_paths(overlay)))


def _paths(overlay: Mapping[str, Any]) -> Iterator[str]:
    for section, fields in overlay.items():
        for name, value in fields.items() if isinstance(fields, Mapping) else ():
            if name != "containers" or not isinstance(value, list):
                yield f"{section}.{name}"
                continue
            for item in value:
                keys = item if isinstance(item, Mapping) else {}
                yield from (
                    f"{section}.containers[{keys.get('name')}].{key}"
                    for key in keys
                    if key != "name"
                )


def _merge_maps(base: Mapping[str, Any], overlay: Mapping[str, Any]) -> dict[str, Any]:
    result = copy.deepcopy(dict(base))
    for name, value in overlay.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = _merge_values(name, result.get(name), value)
    return result


def _merge_values(name: str, base: Any, overlay: Any) -> Any:
    if isinstance(base, list) != isinstance(overlay, list) and base is not None:
        wanted = "a list" if isinstance(base, list) else "no list"
        raise OverlayError(f"{name} must be {wanted}, got {overlay!r}")
    if isinstance(base, Mapping) and not isinstance(overlay, Mapping):
        raise OverlayError(f"{name} must be an object, got {overlay!r}")
    if isinstance(overlay, Mapping):
        return _merge_maps(base if isinstance(base, Mapping) else {}, overlay)
    if isinstance(overlay, list) and isinstance(base, list):
        if name in _APPENDED:
            return [*base, *(copy.deepcopy(item) for item in overlay if item not in base)]
        if name in _MERGE_KEYS:
            return _merge_lists(name, base, overlay)
    return copy.deepcopy(overlay)


def _merge_lists(name: str, base: list[Any], overlay: list[Any]) -> list[Any]:
    merged = {_identity(name, item): item for item in base}
    for item in overlay:
        identity = _identity(name, item)
        if item.get(_PATCH) == "delete":
            merged.pop(identity, None)
        elif name in _REPLACED_ITEMS:
            merged[identity] = copy.deepcopy(item)
        else:
            merged[identity] = _merge_maps(merged.get(identity, {}), item)
    return list(merged.values())


def _identity(name: str, item: Any) -> tuple[Any, ...]:
    defaults = _ITEM_DEFAULTS.get(name, {})
    if not isinstance(item, Mapping):
        raise OverlayError(f"an item of {name} must be an object, got {item!r}")
    values = tuple(item.get(key, defaults.get(key)) for key in _MERGE_KEYS[name])
    if values[0] is None:
        raise OverlayError(f"an item of {name} lacks {_MERGE_KEYS[name][0]}, which identifies it")
    return values


class OverlayError(ValueError):
    """The overlay cannot be merged; the message names the field, and what is wrong with it."""
