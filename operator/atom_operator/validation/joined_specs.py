"""Merge a part of a spec over the rest of it. Pure.

Maps are merged key by key, lists of named items by name; any other value of the part wins.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_WHOLE = ("config", "draftConfig", "valueFrom", "configRef")  # no maps whose keys are joined


def joined(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return the maps merged; `above` wins."""
    result = dict(below)
    for name, value in above.items():
        under = result.get(name)
        if isinstance(value, Mapping) and isinstance(under, Mapping) and name not in _WHOLE:
            result[name] = joined(under, value)
        elif under is not None and _is_named(value) and _is_named(under):
            own = {item["name"]: item for item in value}
            known = {item["name"] for item in under}
            merged = [_join_item(item, own.get(item["name"])) for item in under]
            result[name] = [*merged, *(item for item in value if item["name"] not in known)]
        else:
            result[name] = value
    return result


def _join_item(below: Mapping[str, Any], above: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Merge two items of one name: a variable's value replaces its source."""
    if above is None:
        return below
    return above if "value" in above or "valueFrom" in above else joined(below, above)


def _is_named(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(item, Mapping) and isinstance(item.get("name"), str) for item in value)
    )
