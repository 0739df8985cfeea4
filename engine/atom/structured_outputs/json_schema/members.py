"""The plan of an object's members: named ones, in their order, and those without a name.

The layers of one case are combined: a name gets the constraints of every layer. Names that no
schema has are distinguished by the patterns they match, so each key has one meaning. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

from atom.structured_outputs.json_schema.cases import (
    NOTHING,
    Case,
    Conjunction,
    Members,
    MembersLayer,
    Reading,
    Texts,
    join,
    meet,
)
from atom.structured_outputs.json_schema.keywords import UnkeptError
from atom.structured_outputs.json_schema.texts import finds, reads

_MAX_PATTERNS = 5


@dataclass(frozen=True, slots=True)
class Member:
    name: str
    value: Conjunction
    required: bool


@dataclass(frozen=True, slots=True)
class Extras:
    """Members with any key of a case's texts."""

    keys: Case
    value: Conjunction


@dataclass(frozen=True, slots=True)
class MemberPlan:
    named: tuple[Member, ...]
    extras: tuple[Extras, ...]


def closes(members: Members) -> bool:
    """Return whether an answer has only named members: no schema has additionalProperties, and one
    names members, as many as are required."""
    given = [layer.given for layer in members.layers]
    if True in given or False not in given:
        return False
    names = {name for layer in members.layers for name, _ in layer.properties}
    named = len(names.union(members.required))
    return named >= members.low or any(layer.patterns for layer in members.layers)


def is_empty_object(members: Members, nothing: Callable[[Conjunction], bool]) -> bool:
    """Return whether a required member cannot exist; nothing: returns whether certainly no value
    fits."""
    return any(nothing(value_of(members, name)) for name in members.required)


def plan_members(members: Members, name_cases: Sequence[Case]) -> MemberPlan:
    """Plan the members of an object; `name_cases` are of the texts that may be names. Raises
    `SchemaError`."""
    named = [name for layer in members.layers for name, _ in layer.properties]
    listed = [
        value
        for case in name_cases
        for value in case.values or ()
        if not closes(members) or _patterned(members, value)
    ]
    names = dict.fromkeys((*named, *members.required, *listed))
    plan = tuple(
        Member(
            name,
            value_of(members, name) if _may_be(name, name_cases) else NOTHING,
            name in members.required,
        )
        for name in names
    )
    free = [case for case in name_cases if case.values is None and "string" in case.types]
    return MemberPlan(plan, tuple(_extras(members, tuple(names), free)))


def _may_be(name: str, name_cases: Sequence[Case]) -> bool:
    return any(name_holds(case, name) for case in name_cases)


def name_holds(case: Case, name: str) -> bool:
    """Return whether a case takes a text."""
    if case.values is not None and name not in case.values:
        return False
    texts = case.texts
    return (
        "string" in case.types
        and name not in case.excluded
        and len(name) >= texts.low
        and (texts.high is None or len(name) <= texts.high)
        and all(reads(one, reading, name) for one, reading in texts.patterns)
    )


def _patterned(members: Members, name: str) -> bool:
    return any(finds(one, name) for layer in members.layers for one, _ in layer.patterns)


def value_of(members: Members, name: str) -> Conjunction:
    """Return the conjunction of all layers' constraints on the member of that name."""
    return join(*(_of_layer(layer, name) for layer in members.layers))


def _of_layer(layer: MembersLayer, name: str) -> Conjunction:
    found = [value for one, value in layer.properties if one == name]
    found += [value for one, value in layer.patterns if finds(one, name, loose=True)]
    spoken = any(one == name for one, _ in layer.properties)
    if not spoken and not any(finds(one, name) for one, _ in layer.patterns):
        found.append(layer.rest)
    return join(*found)


def _extras(members: Members, names: tuple[str, ...], free: list[Case]) -> list[Extras]:
    """List the members without a name in the schema, by the patterns that they match."""
    patterns = list(dict.fromkeys(one for layer in members.layers for one, _ in layer.patterns))
    if len(patterns) > _MAX_PATTERNS:
        raise UnkeptError(
            "patternProperties",
            f"has {len(patterns)} patterns for one object; at most {_MAX_PATTERNS} are kept",
        )
    found: list[Extras] = []
    least = 1 if closes(members) else 0
    for count in range(least, len(patterns) + 1):
        for matching in combinations(patterns, count):
            value = join(*(_of_extra(layer, matching) for layer in members.layers))
            if value == NOTHING:
                continue
            asked = tuple((one, _reading(one in matching)) for one in patterns)
            texts = Case(frozenset(("string",)), excluded=names, texts=Texts(patterns=asked))
            keys = (meet(texts, case) for case in free)
            found.extend(Extras(one, value) for one in keys if one is not None)
    return found


def _reading(matches: bool) -> Reading:
    return Reading.MATCHES if matches else Reading.LACKS


def _of_extra(layer: MembersLayer, matching: tuple[str, ...]) -> Conjunction:
    found = [value for one, value in layer.patterns if one in matching]
    return join(*found) if found else layer.rest
