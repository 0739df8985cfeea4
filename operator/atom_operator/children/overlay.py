"""Strategic merge of a user's pod template over the rendered one. Pure; inputs are not changed.

As the API server merges (`kubectl patch --type strategic`), by the API's own merge keys and with
all of its directives: `null`, `$patch`, `$retainKeys`, `$setElementOrder`,
`$deleteFromPrimitiveList`. An overlay states the desired fields, as `kubectl apply` does: if fields
exclude each other (a volume's source, a probe's handler, a variable's value) the rendered one goes.
One deviation: tolerations are added to ours, which pods need. Kubernetes API:
sig-api-machinery/strategic-merge-patch.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

from atom_operator.api.pod_schema import ROOT, PodField, field_of, fields_of, lacking_keys

_PATCH = "$patch"
_RETAIN_KEYS = "$retainKeys"
_ELEMENT_ORDER = "$setElementOrder/"
_DELETE_ITEMS = "$deleteFromPrimitiveList/"
# Fields of a type of which an object has one at most.
_UNIONS: Mapping[str, frozenset[str]] = {
    "EnvVar": frozenset({"value", "valueFrom"}),
    "EnvVarSource": frozenset(fields_of("EnvVarSource")),
    "LifecycleHandler": frozenset(fields_of("LifecycleHandler")),
    "Probe": frozenset({"exec", "grpc", "httpGet", "tcpSocket"}),
}
# No merge key in the API, but replacing ours would make pods unschedulable.
_APPENDED = "Toleration"


class OverlayError(ValueError):
    """Report that the overlay cannot be merged; the message names the field and the fault."""


def merge_pod_template(base: Mapping[str, Any], overlay: Mapping[str, Any]) -> dict[str, Any]:
    """Merge `overlay` over `base`; raises OverlayError. Untouched parts are shared with `base`, not
    copied, which would cost a tenth of a reconcile: callers that render pods do not keep the
    base."""
    for path, key in lacking_keys(overlay):
        raise OverlayError(f"an item of {path.rpartition('[')[0]} lacks {key}, which identifies it")
    return _merge_maps(base, overlay, ROOT, "")


def copied(value: Any) -> Any:
    """Copy a JSON value down to its leaves: many times faster than copy.deepcopy."""
    if isinstance(value, dict):
        return {name: copied(item) for name, item in value.items()}
    return [copied(item) for item in value] if isinstance(value, list) else value


def overlay_paths(overlay: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the fields that an overlay touches, two levels deep, as a user would name them."""
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


def _merge_maps(
    base: Mapping[str, Any], overlay: Mapping[str, Any], type_name: str, path: str
) -> dict[str, Any]:
    """Merge two objects of a type; one that is no struct (labels, limits) has a leaf's type."""
    directive = overlay.get(_PATCH, "merge")
    if directive == "delete":
        return {}
    if directive == "replace":
        return _fresh_map(overlay)
    if directive != "merge":
        raise OverlayError(f"{path}.{_PATCH} must be merge, replace or delete, got {directive!r}")
    result = dict(base)
    for name in _dropped(base, overlay, type_name, path):
        del result[name]
    for name, value in overlay.items():
        if not name.startswith("$"):
            _merge_field(result, name, overlay, field_of(type_name, name), _join(path, name))
        elif name.startswith(_DELETE_ITEMS):
            field = name.removeprefix(_DELETE_ITEMS)
            gone = _directive_list(value, _join(path, name))
            kept = [item for item in _as_list(result.get(field)) if item not in gone]
            if field in result:
                result[field] = kept
        elif name.startswith(_ELEMENT_ORDER):
            _order_field(result, name, overlay, type_name, path)
        elif name not in (_PATCH, _RETAIN_KEYS):
            raise OverlayError(
                f"{_join(path, name)} is no directive of a strategic merge; known are {_PATCH}, "
                f"{_RETAIN_KEYS}, {_ELEMENT_ORDER}FIELD and {_DELETE_ITEMS}FIELD"
            )
    return result


def _dropped(
    base: Mapping[str, Any], overlay: Mapping[str, Any], type_name: str, path: str
) -> set[str]:
    """Return the fields of `base` to drop: all that `$retainKeys` does not name, and in a union the
    fields that exclude the overlay's."""
    asked = {name for name, value in overlay.items() if value is not None and name[:1] != "$"}
    if _RETAIN_KEYS in overlay:
        retained = set(_directive_list(overlay[_RETAIN_KEYS], _join(path, _RETAIN_KEYS)))
        if asked - retained:
            names = ", ".join(sorted(asked - retained))
            raise OverlayError(f"{_join(path, _RETAIN_KEYS)} must name every field here: {names}")
        return set(base) - retained
    union = _UNIONS.get(type_name, frozenset())
    return (set(base) & union) - asked if asked & union else set()


def _merge_field(
    result: dict[str, Any], name: str, overlay: Mapping[str, Any], field: PodField, path: str
) -> None:
    value = overlay[name]
    if value is None:
        result.pop(name, None)
        return
    base = result.get(name)
    if base is None:
        result[name] = _fresh(value)
        return
    _check_shapes(base, value, path)
    if isinstance(value, Mapping):
        # In a map of structs (pods have none today) each value is merged like a field.
        result[name] = _merge_maps(base, value, "any" if field.container else field.type, path)
    elif isinstance(value, list):
        order = overlay.get(f"{_ELEMENT_ORDER}{name}")
        result[name] = _merge_lists(base, value, field, path, order)
    else:
        result[name] = value


def _check_shapes(base: Any, overlay: Any, path: str) -> None:
    if isinstance(base, list) != isinstance(overlay, list):
        wanted = "a list" if isinstance(base, list) else "no list"
        raise OverlayError(f"{path} must be {wanted}, got {overlay!r}")
    if isinstance(base, Mapping) != isinstance(overlay, Mapping):
        wanted = "an object" if isinstance(base, Mapping) else "no object"
        raise OverlayError(f"{path} must be {wanted}, got {overlay!r}")


def _merge_lists(
    base: list[Any], overlay: list[Any], field: PodField, path: str, order: Any
) -> list[Any]:
    if any(isinstance(item, Mapping) and item.get(_PATCH) == "replace" for item in overlay):
        return _fresh(overlay)  # type: ignore[no-any-return]
    if field.type == _APPENDED:
        return [*base, *(item for item in _fresh(overlay) if item not in base)]
    if not field.merges:
        return _fresh(overlay)  # type: ignore[no-any-return]
    if field.key is None:  # scalars
        merged = list(dict.fromkeys([*base, *overlay]))
        return _in_order(merged, overlay if order is None else order, base, None)
    items = list(base)
    for item in overlay:
        _merge_item(items, item, field, path)
    wanted = [item for item in overlay if item.get(_PATCH) != "delete"]
    if order is not None:
        wanted = _directive_list(order, path)
    return _in_order(items, wanted, base, field.key)


def _merge_item(items: list[Any], item: Any, field: PodField, path: str) -> None:
    key = str(field.key)
    if not isinstance(item, Mapping):
        raise OverlayError(f"an item of {path} must be an object, got {item!r}")
    places = [place for place, known in enumerate(items) if known.get(key) == item[key]]
    if item.get(_PATCH) == "delete":
        items[:] = [known for known in items if known.get(key) != item[key]]
    elif not places:
        items.append(_fresh_map(item))
    else:
        asked = dict(item)
        if field.retains_keys and _RETAIN_KEYS not in asked:
            asked[_RETAIN_KEYS] = [name for name in asked if not name.startswith("$")]
        where = f"{path}[{item[key]}]"
        items[places[0]] = _merge_maps(items[places[0]], asked, field.type, where)


def _order_field(
    result: dict[str, Any], name: str, overlay: Mapping[str, Any], type_name: str, path: str
) -> None:
    """Order a list that the overlay only orders; one that it also merges is ordered with that."""
    listed = name.removeprefix(_ELEMENT_ORDER)
    order = _directive_list(overlay[name], _join(path, name))
    if listed not in overlay and isinstance(result.get(listed), list):
        field = field_of(type_name, listed)
        result[listed] = _in_order(result[listed], order, result[listed], field.key)


def _in_order(
    items: list[Any], wanted: Sequence[Any], before: Sequence[Any], key: str | None
) -> list[Any]:
    """Sort as the API does: requested items in the requested order, the others between them at
    their old places."""

    def identity(item: Any) -> Any:
        found = item.get(key) if key is not None and isinstance(item, Mapping) else item
        return found if isinstance(found, Hashable) else repr(found)

    rank = {identity(item): place for place, item in reversed(list(enumerate(wanted)))}
    place = {identity(item): number for number, item in reversed(list(enumerate(before)))}
    asked = sorted((i for i in items if identity(i) in rank), key=lambda i: rank[identity(i)])
    others = [item for item in items if identity(item) not in rank]
    result: list[Any] = []
    while others and asked:
        left, right = place.get(identity(others[0])), place.get(identity(asked[0]))
        first = left is not None and right is not None and left < right
        result.append((others if first else asked).pop(0))
    return [*result, *asked, *others]


def _fresh(value: Any) -> Any:
    """Copy a new value without directives and nulls."""
    if isinstance(value, Mapping):
        return _fresh_map(value)
    if isinstance(value, list):
        # A mere merge directive is no item.
        return [_fresh(item) for item in value if not _is_directive(item)]
    return value


def _fresh_map(value: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _fresh(inner)
        for name, inner in value.items()
        if inner is not None and not name.startswith("$") and not _is_deletion(inner)
    }


def _is_deletion(value: Any) -> bool:
    return isinstance(value, Mapping) and value.get(_PATCH) == "delete"


def _is_directive(item: Any) -> bool:
    return _is_deletion(item) or (isinstance(item, Mapping) and set(item) == {_PATCH})


def _directive_list(value: Any, path: str) -> list[Any]:
    if not isinstance(value, list):
        raise OverlayError(f"{path} must be a list, got {value!r}")
    return value


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
