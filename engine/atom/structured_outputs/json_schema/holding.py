"""Holding: whether a value fits a conjunction, for values that a schema lists itself. Pure.

Formats do not count here: JSON schema has them as annotations, and a listed value is meant.
"""

from __future__ import annotations

from typing import Any

from atom.structured_outputs import exact_json
from atom.structured_outputs.json_schema.cases import Case, Conjunction, Items, Members
from atom.structured_outputs.json_schema.expansion import Expansion
from atom.structured_outputs.json_schema.members import name_holds, value_of
from atom.structured_outputs.json_schema.numbers import is_multiple, outside


class Holding:
    def __init__(self, expansion: Expansion) -> None:
        self._expansion = expansion

    def fits(self, conjunction: Conjunction, value: Any) -> bool:
        return any(self.fits_case(case, value) for case in self._expansion.cases(conjunction))

    def fits_case(self, case: Case, value: Any) -> bool:
        kind, key = exact_json.kind(value), exact_json.key(value)
        if kind not in case.types or any(exact_json.key(one) == key for one in case.excluded):
            return False
        if case.values is not None and all(exact_json.key(one) != key for one in case.values):
            return False
        match kind:
            case "integer" | "fraction":
                return not outside(value, case.numbers) and is_multiple(value, case.numbers)
            case "string":
                return name_holds(case, value)
            case "array":
                return self._items(case.items, value)
            case "object":
                return self._members(case.members, value)
        return True

    def _items(self, items: Items, value: list[Any]) -> bool:
        if len(value) < items.low or (items.high is not None and len(value) > items.high):
            return False
        if items.unique and len({exact_json.key(one) for one in value}) < len(value):
            return False
        for wanted in items.contains:
            if not any(self.fits(wanted, one) for one in value):
                return False
        return all(
            self.fits(layer.prefix[at] if at < len(layer.prefix) else layer.rest, one)
            for layer in items.layers
            for at, one in enumerate(value)
        )

    def _members(self, members: Members, value: dict[str, Any]) -> bool:
        if len(value) < members.low or (members.high is not None and len(value) > members.high):
            return False
        if any(name not in value for name in members.required):
            return False
        return all(
            self.fits(members.names, name) and self.fits(value_of(members, name), one)
            for name, one in value.items()
        )
