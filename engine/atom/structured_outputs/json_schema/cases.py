"""Case: a set of JSON values that one branch of a schema allows, with its constraints by type.

A schema is a list of cases, one of which holds. Two cases that must both hold `meet` in one; the
result is None if plainly no value is left. The constraints on members and items are conjunctions of
other places in the schema. They are resolved only when needed, so recursive schemas work. Frozen
values; pure.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import Enum
from typing import Any

from atom.structured_outputs import exact_json
from atom.structured_outputs.json_schema.keywords import Path

Number = int | Decimal
ALL_TYPES = frozenset(("null", "boolean", "integer", "fraction", "string", "array", "object"))
NUMERIC = frozenset(("integer", "fraction"))


@dataclass(frozen=True, slots=True)
class Place:
    """The values that the schema at a path takes; negated: those it does not take."""

    path: Path
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Closed:
    """The values that an answer to a conjunction may have: no members but those it names, unless it
    has additionalProperties."""

    conjunction: Conjunction


@dataclass(frozen=True, slots=True)
class Never:
    """No value."""


Conjunction = tuple[Place | Closed | Never, ...]
ANYTHING: Conjunction = ()
NOTHING: Conjunction = (Never(),)


@dataclass(frozen=True, slots=True)
class Numbers:
    low: Number | None = None
    low_open: bool = False
    high: Number | None = None
    high_open: bool = False
    divisors: tuple[Number, ...] = ()

    @property
    def is_empty(self) -> bool:
        if self.low is None or self.high is None:
            return False
        return self.low > self.high or (self.low == self.high and (self.low_open or self.high_open))


class Reading(Enum):
    """The meaning of a pattern if ECMA-262 and Python differ about its matches."""

    MATCHES = "found by both"
    LACKS = "found by neither"
    MAY_MATCH = "found by one of them at least"


@dataclass(frozen=True, slots=True)
class Texts:
    low: int = 0
    high: int | None = None
    patterns: tuple[tuple[str, Reading], ...] = ()
    formats: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ItemsLayer:
    """The constraints of one schema on items. given: the schema constrains the items after its
    prefix."""

    prefix: tuple[Conjunction, ...] = ()
    rest: Conjunction = ANYTHING
    given: bool = False


@dataclass(frozen=True, slots=True)
class Items:
    layers: tuple[ItemsLayer, ...] = ()
    low: int = 0
    high: int | None = None
    unique: bool = False
    contains: tuple[Conjunction, ...] = ()


@dataclass(frozen=True, slots=True)
class MembersLayer:
    """The constraints of one schema on members. given: True if the schema constrains the members
    that it does not name; None if it names none either, and leaves the choice to other schemas."""

    properties: tuple[tuple[str, Conjunction], ...] = ()
    patterns: tuple[tuple[str, Conjunction], ...] = ()
    rest: Conjunction = ANYTHING
    given: bool | None = False


@dataclass(frozen=True, slots=True)
class Members:
    layers: tuple[MembersLayer, ...] = ()
    required: tuple[str, ...] = ()
    low: int = 0
    high: int | None = None
    names: Conjunction = ANYTHING


@dataclass(frozen=True, slots=True)
class Case:
    """A set of values that a schema allows. values: the only values, if they are listed; excluded:
    values that are not allowed."""

    types: frozenset[str] = ALL_TYPES
    values: tuple[Any, ...] | None = None
    excluded: tuple[Any, ...] = ()
    numbers: Numbers = Numbers()
    texts: Texts = Texts()
    items: Items = Items()
    members: Members = Members()

    def __hash__(self) -> int:
        return hash((self.types, self.numbers, self.texts, self.items, self.members))


def meet(one: Case, other: Case) -> Case | None:
    """Return the case of the values that both cases allow."""
    types = one.types & other.types
    return tidy(
        Case(
            types=types,
            values=_common(one.values, other.values),
            excluded=one.excluded + other.excluded,
            numbers=_meet_numbers(one.numbers, other.numbers),
            texts=_meet_texts(one.texts, other.texts),
            items=_meet_items(one.items, other.items),
            members=_meet_members(one.members, other.members),
        )
    )


def tidy(case: Case) -> Case | None:
    """Drop types that plainly have no value; None when none is left."""
    gone: set[str] = set()
    if case.numbers.is_empty:
        gone |= NUMERIC
    for name, bounds in (("string", case.texts), ("array", case.items), ("object", case.members)):
        if bounds.high is not None and bounds.low > bounds.high:
            gone.add(name)
    types, values = case.types - gone, case.values
    if values is not None:
        excluded = {exact_json.key(value) for value in case.excluded}
        values = tuple(
            value
            for value in values
            if exact_json.kind(value) in types and exact_json.key(value) not in excluded
        )
        types &= {exact_json.kind(value) for value in values}
    if not types:
        return None
    return replace(case, types=types, values=values)


def join(*conjunctions: Conjunction) -> Conjunction:
    """Combine conjunctions into one that requires all their places."""
    found = tuple(dict.fromkeys(one for conjunction in conjunctions for one in conjunction))
    return NOTHING if any(isinstance(one, Never) for one in found) else found


def unique_values(values: Iterable[Any]) -> tuple[Any, ...]:
    """Return distinct values, as JSON schema compares them."""
    found: dict[Hashable, Any] = {}
    for value in values:
        found.setdefault(exact_json.key(value), value)
    return tuple(found.values())


def _common(one: tuple[Any, ...] | None, other: tuple[Any, ...] | None) -> tuple[Any, ...] | None:
    if one is None or other is None:
        return other if one is None else one
    keys = {exact_json.key(value) for value in other}
    return tuple(value for value in one if exact_json.key(value) in keys)


def _least(one: int | None, other: int | None) -> int | None:
    return min((bound for bound in (one, other) if bound is not None), default=None)


def _meet_numbers(one: Numbers, other: Numbers) -> Numbers:
    if one == other or other == Numbers():
        return one
    lows = [(n.low, n.low_open) for n in (one, other) if n.low is not None]
    highs = [(n.high, not n.high_open) for n in (one, other) if n.high is not None]
    low, low_open = max(lows, default=(None, False))
    high, closed = min(highs, default=(None, True))
    return Numbers(
        low,
        low_open,
        high,
        not closed,
        tuple(dict.fromkeys(one.divisors + other.divisors)),
    )


def _meet_texts(one: Texts, other: Texts) -> Texts:
    return Texts(
        max(one.low, other.low),
        _least(one.high, other.high),
        tuple(dict.fromkeys(one.patterns + other.patterns)),
        tuple(dict.fromkeys(one.formats + other.formats)),
    )


def _meet_items(one: Items, other: Items) -> Items:
    return Items(
        tuple(dict.fromkeys(one.layers + other.layers)),
        max(one.low, other.low),
        _least(one.high, other.high),
        one.unique or other.unique,
        tuple(dict.fromkeys(one.contains + other.contains)),
    )


def _meet_members(one: Members, other: Members) -> Members:
    return Members(
        tuple(dict.fromkeys(one.layers + other.layers)),
        tuple(dict.fromkeys(one.required + other.required)),
        max(one.low, other.low),
        _least(one.high, other.high),
        join(one.names, other.names),
    )
