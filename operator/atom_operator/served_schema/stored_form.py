"""Bring a manifest into the form that the API server would store. Pure.

Nulls of fields that take no null are removed and defaults are filled in, in this order and before
any rule is checked (https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/
custom-resource-definitions/#defaulting-and-nullable).
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any


def stored_form(schema: Mapping[str, Any], value: Any) -> Any:
    """Return a copy of `value` without nulls that `schema` does not take, and with its defaults."""
    if isinstance(value, list):
        items = schema.get("items")
        return [stored_form(items, item) if items else deepcopy(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    fields, rest = schema.get("properties", {}), schema.get("additionalProperties")
    stored = {}
    for name, item in value.items():
        below = fields.get(name, rest)
        if below is None:
            stored[name] = deepcopy(item)
        elif item is not None or below.get("nullable"):
            stored[name] = stored_form(below, item)
    for name, below in fields.items():
        if name not in stored and "default" in below:
            stored[name] = deepcopy(below["default"])
    return stored
