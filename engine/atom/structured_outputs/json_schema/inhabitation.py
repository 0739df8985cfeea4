"""Inhabitation: find the conjunctions of a schema that have a value, by a least fixed point.

A conjunction has a value if one of its cases can be written in full: its required members and items
must have values themselves. Recursion without a base case therefore has no value. Work is bounded.
Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from atom.structured_outputs.json_schema.cases import Case, Conjunction
from atom.structured_outputs.json_schema.expansion import Expansion
from atom.structured_outputs.json_schema.holding import Holding
from atom.structured_outputs.json_schema.items import ItemPlan, plan_items
from atom.structured_outputs.json_schema.keywords import SchemaError
from atom.structured_outputs.json_schema.members import MemberPlan, plan_members
from atom.structured_outputs.json_schema.numbers import number_languages
from atom.structured_outputs.json_schema.texts import text_language

_MAX_REACHED = 4000
_SCALARS = ("null", "boolean")


class Inhabitation:
    """Finds the conjunctions below a root that some value fits (`inhabited`)."""

    def __init__(self, expansion: Expansion, root: Conjunction) -> None:
        """Raises `SchemaError`."""
        self.expansion = expansion
        self._holding = Holding(expansion)
        self._members: dict[int, MemberPlan] = {}
        self._items: dict[int, ItemPlan] = {}
        self._ready: dict[int, bool] = {}
        self._cases: dict[int, Case] = {}
        self.inhabited: set[Conjunction] = set()
        self._whole: set[Conjunction] = set()
        self._settle(self._reached(root))

    def live_cases(self, conjunction: Conjunction) -> list[Case]:
        """Return the conjunction's cases that have at least one value."""
        whole = conjunction in self._whole
        return [case for case in self.expansion.cases(conjunction) if self._lives(case, whole)]

    def live_types(self, conjunction: Conjunction, case: Case) -> frozenset[str]:
        """Return the types that a value of the case may have; for cases that list no values."""
        whole = conjunction in self._whole
        return frozenset(kind for kind in case.types if self._has(case, kind, whole))

    def live_items(self, conjunction: Conjunction, case: Case) -> ItemPlan:
        """Return the plan of an array; without its optional prefix if that recurs."""
        plan = self.items(case)
        if conjunction in self._whole:
            return plan
        return replace(plan, prefix=plan.prefix[: plan.least], high=plan.least, low=plan.least)

    def values(self, case: Case) -> list[object]:
        """Return the listed values of a case that fit it."""
        return [one for one in case.values or () if self._holding.fits_case(case, one)]

    def members(self, case: Case) -> MemberPlan:
        found = self._members.get(id(case))
        if found is None:
            self._cases[id(case)] = case  # keeps it, and so its id
            names = self.expansion.cases(case.members.names)
            found = self._members[id(case)] = plan_members(case.members, names)
        return found

    def items(self, case: Case) -> ItemPlan:
        found = self._items.get(id(case))
        if found is None:
            self._cases[id(case)] = case
            found = self._items[id(case)] = plan_items(
                case.items, lambda one: not self.expansion.cases(one)
            )
        return found

    def emptiest(self, root: Conjunction) -> Conjunction:
        """Return the deepest conjunction that leaves one above it without a value."""
        seen = {root: None}
        found = root
        while True:
            below = (
                one
                for case in self.expansion.cases(found)
                for one in self._needed(case)
                if one not in self.inhabited and one not in seen
            )
            deeper = next(below, None)
            if deeper is None:
                return found
            seen[deeper], found = None, deeper

    def _needed(self, case: Case) -> Iterable[Conjunction]:
        if "object" in case.types:
            yield from (one.value for one in self.members(case).named if one.required)
        if "array" in case.types:
            plan = self.items(case)
            yield from (*plan.prefix, plan.rest)

    def _reached(self, root: Conjunction) -> list[Conjunction]:
        reached = {root: None}
        pending = [root]
        for conjunction in pending:
            for below in self._all_below(conjunction):
                if below not in reached:
                    reached[below] = None
                    pending.append(below)
            if len(reached) > _MAX_REACHED:
                raise SchemaError(
                    f"the JSON schema has more than {_MAX_REACHED} different places once its parts "
                    f"are put together; make it smaller"
                )
        return pending

    def _all_below(self, conjunction: Conjunction) -> list[Conjunction]:
        with self.expansion.placing(conjunction):
            cases = self.expansion.cases(conjunction)
            return [below for case in cases for below in self._below(case)]

    def _below(self, case: Case) -> Iterable[Conjunction]:
        if case.values is not None:
            return
        if "object" in case.types:
            plan = self.members(case)
            yield from (member.value for member in plan.named)
            yield from (extras.value for extras in plan.extras)
        if "array" in case.types:
            items = self.items(case)
            yield from items.prefix
            yield items.rest
            for wanted in case.items.contains:
                yield (*items.rest, *wanted)

    def _settle(self, reached: list[Conjunction]) -> None:
        """Settle arrays with their whole prefix first, then those that end only without it."""
        waiting = reached[::-1]  # deeper ones first
        for whole in (True, False):
            while True:
                left = []
                for conjunction in waiting:
                    if self._any_lives(conjunction, whole):
                        self.inhabited.add(conjunction)
                    else:
                        left.append(conjunction)
                done, waiting = len(left) == len(waiting), left
                if done:
                    break
            if whole:
                self._whole = set(self.inhabited)

    def _any_lives(self, conjunction: Conjunction, whole: bool) -> bool:
        with self.expansion.placing(conjunction):
            return any(self._lives(case, whole) for case in self.expansion.cases(conjunction))

    def _lives(self, case: Case, whole: bool) -> bool:
        if case.values is not None:
            return bool(self.values(case))
        return any(self._has(case, kind, whole) for kind in case.types)

    def _has(self, case: Case, kind: str, whole: bool) -> bool:
        if kind == "object":
            return self._object_lives(case)
        if kind == "array":
            return self._array_lives(case, whole)
        known = self._ready.get(id(case))
        if kind in _SCALARS:
            return bool(literals(case, kind))
        if kind == "string":
            return not text_language(case).is_empty
        if known is None:
            self._cases[id(case)] = case
            known = self._ready[id(case)] = bool(number_languages(case))
        return known

    def _object_lives(self, case: Case) -> bool:
        plan, most = self.members(case), 0
        for member in plan.named:
            lives = member.value in self.inhabited
            if member.required and not lives:
                return False
            most += lives
        required = sum(member.required for member in plan.named)
        if case.members.high is not None and required > case.members.high:
            return False
        return case.members.low <= most or any(
            extras.value in self.inhabited and not text_language(extras.keys).is_empty
            for extras in plan.extras
        )

    def _array_lives(self, case: Case, whole: bool) -> bool:
        plan = self.items(case)
        least = max(plan.least, min(len(case.items.contains), 1))
        if plan.high is not None and least > plan.high:
            return False
        prefix = plan.prefix if whole else plan.prefix[: plan.least]
        if any(one not in self.inhabited for one in prefix):
            return False
        if any(layer.prefix for layer in case.items.layers) and case.items.contains:
            return True  # and refused when it comes to be written
        if any((*plan.rest, *wanted) not in self.inhabited for wanted in case.items.contains):
            return False
        return plan.least <= len(plan.prefix) or plan.rest in self.inhabited


def literals(case: Case, kind: str) -> list[str]:
    """Return JSON's words for the values null, or true and false, that a case allows."""
    known: dict[str, dict[str, bool | None]] = {
        "null": {"null": None},
        "boolean": {"true": True, "false": False},
    }
    return [
        word
        for word, value in known[kind].items()
        if not any(type(one) is type(value) and one == value for one in case.excluded)
    ]
