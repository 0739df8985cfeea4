"""Removes fields from the rendered pod template by their paths: spec.templateRemove. Pure.

The effect of `null` in spec.template, in a spelling that is kept: the API server prunes nulls of a
custom resource that `kubectl apply` or a GitOps controller sends. Paths are read by the API's own
schema, so a name that no pod has is refused; a field that is not rendered cannot be removed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from atom_operator.api.pod_schema import ROOT, PodField, field_of, fields_of
from atom_operator.children.overlay import OverlayError, copied

_FIELD = "spec.templateRemove"
_STEP = re.compile(r"\.?([A-Za-z][A-Za-z0-9]*)|\[([^\]]+)\]")


def remove_fields(template: Mapping[str, Any], paths: Iterable[str]) -> dict[str, Any]:
    """Return the template without the fields that the paths name; raises OverlayError."""
    result: dict[str, Any] = copied(dict(template))
    for number, path in enumerate(paths):
        try:
            _remove(result, _steps(path), PodField(ROOT))
        except OverlayError as error:
            raise OverlayError(f"{_FIELD}[{number}] {path}: {error}") from None
    return result


def _steps(path: str) -> list[tuple[str, bool]]:
    """Split a path into steps: each a name, and whether it is in brackets."""
    steps: list[tuple[str, bool]] = []
    end = 0
    while end < len(path):
        match = _STEP.match(path, end)
        if match is None:
            raise OverlayError(
                "is no path; write it like spec.securityContext.runAsUser, "
                "spec.containers[engine].livenessProbe or metadata.labels[team]"
            )
        name, chosen = match.groups()
        steps.append((name or chosen, name is None))
        end = match.end()
    return steps


def _remove(node: Any, steps: list[tuple[str, bool]], field: PodField) -> None:
    """Remove the value at `steps` from `node`, whose field is `field`."""
    (name, in_brackets), rest = steps[0], steps[1:]
    if field.container == "list":
        _remove_item(node, name, rest, field)
        return
    inner = PodField(field.type) if field.container == "map" else _known(field, name)
    if in_brackets and field.container != "map":
        raise OverlayError(f"[{name}] chooses an item, and there is no list here; write .{name}")
    if not isinstance(node, dict) or name not in node:
        if rest and inner.type != "any" and not inner.is_leaf:
            _remove({}, rest, inner)  # for its complaints alone
        return
    if rest:
        _remove(node[name], rest, inner)
    else:
        del node[name]


def _known(field: PodField, name: str) -> PodField:
    if field.is_leaf:
        raise OverlayError(f"{name} is below a value that has no fields")
    if name not in fields_of(field.type):
        known = ", ".join(sorted(fields_of(field.type)))
        raise OverlayError(f"{name} is no field here; there are {known}")
    return field_of(field.type, name)


def _remove_item(node: Any, name: str, rest: list[tuple[str, bool]], field: PodField) -> None:
    if field.key is None:
        raise OverlayError(
            "items of this list have no key to be named by; remove the list, or set it in "
            "spec.template"
        )
    items = node if isinstance(node, list) else []
    chosen = [item for item in items if str(item.get(field.key)) == name]
    if not rest:
        items[:] = [item for item in items if str(item.get(field.key)) != name]
        return
    if rest[0][0] == field.key:
        raise OverlayError(f"{field.key} identifies the item; remove the whole item")
    for item in chosen or [{}]:  # of none, for its complaints alone
        _remove(item, rest, PodField(field.type))
