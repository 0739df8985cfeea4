"""Expansion: the cases of each place in a schema, with references followed and alternatives listed.

allOf, `$ref` and the like combine cases, anyOf and oneOf list alternatives, if and the dependent
keywords do both. oneOf is enforced if no answer can fit two of its parts, and refused otherwise.
Work is bounded. Pure.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations

from atom.structured_outputs.json_schema.cases import (
    ANYTHING,
    Case,
    Closed,
    Conjunction,
    Items,
    ItemsLayer,
    Members,
    MembersLayer,
    Never,
    Place,
    Reading,
    meet,
)
from atom.structured_outputs.json_schema.keywords import (
    REFERENCES,
    Path,
    SchemaError,
    UnkeptError,
    check_keywords,
    place,
    refusal,
)
from atom.structured_outputs.json_schema.members import closes, is_empty_object
from atom.structured_outputs.json_schema.negation import Negation
from atom.structured_outputs.json_schema.own_case import Schema, having, own_case, without
from atom.structured_outputs.json_schema.references import SchemaDocument
from atom.structured_outputs.json_schema.texts import text_language

MAX_WORK = 20_000
MAX_CASES = 512
_LOOK_AHEAD = 6
_TOO_MUCH = (
    "the JSON schema puts too many alternatives together; make it smaller: fewer parts in anyOf, "
    "oneOf and allOf"
)


class Expansion:
    def __init__(self, document: SchemaDocument) -> None:
        self.document = document
        self._of_place: dict[Place | Closed | Never, list[Case]] = {Never(): []}
        self._of_conjunction: dict[Conjunction, list[Case]] = {ANYTHING: [Case()]}
        self._open: set[Place] = set()
        self._work = 0
        self._negation = Negation(self)

    def cases(self, conjunction: Conjunction) -> list[Case]:
        """List the cases of all places of a conjunction at once; none when no value fits. Raises
        `SchemaError`."""
        found = self._of_conjunction.get(conjunction)
        if found is None:
            found = [Case()]
            for one in conjunction:
                found = self.met(found, self._of(one))
            self._of_conjunction[conjunction] = found
        return found

    def met(self, left: list[Case], right: list[Case]) -> list[Case]:
        """List every way to keep one of each."""
        self._work += len(left) * len(right)
        if self._work > MAX_WORK:
            raise SchemaError(_TOO_MUCH)
        both = (meet(one, other) for one in left for other in right)
        found = list(dict.fromkeys(case for case in both if case is not None))
        if len(found) > MAX_CASES:
            raise SchemaError(_TOO_MUCH)
        return found

    @contextlib.contextmanager
    def placing(self, conjunction: Conjunction) -> Iterator[None]:
        """Add the place of a conjunction to an `UnkeptError` raised within this context."""
        try:
            yield
        except UnkeptError as error:
            raise error.placed(self.place_of(conjunction)) from None

    def place_of(self, conjunction: Conjunction) -> Path:
        """Return the first place of a conjunction."""
        for one in conjunction:
            if isinstance(one, Closed):
                return self.place_of(one.conjunction)
            if isinstance(one, Place):
                return one.path
        return ()

    def _of(self, one: Place | Closed | Never) -> list[Case]:
        found = self._of_place.get(one)
        if found is None:
            if isinstance(one, Closed):
                found = [_closed(case) for case in self.cases(one.conjunction)]
            else:
                assert isinstance(one, Place)
                found = self._of_schema(one)
            self._of_place[one] = found
        return found

    def _of_schema(self, at: Place) -> list[Case]:
        schema = self.document.at(at.path)
        if isinstance(schema, bool):
            return [Case()] if schema is not at.negated else []
        if not isinstance(schema, dict):
            raise SchemaError(
                f"the JSON schema at {place(at.path)} must be an object, true or false"
            )
        if at in self._open:
            raise SchemaError(
                f"the JSON schema at {place(at.path)} refers to itself with nothing in between; "
                f"recursion must pass through a property or an item"
            )
        self._open.add(at)
        try:
            check_keywords(schema, at.path)
            if at.negated:
                return self._negation.cases(schema, at.path)
            return self._positive(schema, at.path)
        finally:
            self._open.discard(at)

    def _positive(self, schema: Schema, path: Path) -> list[Case]:
        if "$ref" in schema and self.document.refs_stand_alone:
            return self._of(Place(self.document.target(path, "$ref")))
        own = own_case(schema, path)
        found = [] if own is None else [own]
        for part in self._parts(schema, path):
            found = self.met(found, part)
        found = self._unevaluated(found, schema, path)
        if "oneOf" in schema:
            found = self._one_of(found, path, len(schema["oneOf"]))
        return found

    def _parts(self, schema: Schema, path: Path) -> Iterator[list[Case]]:
        """Yield lists of cases; of each list one case holds."""
        for keyword in REFERENCES:
            if keyword in schema:
                yield self._of(Place(self.document.target(path, keyword)))
        for at in range(len(schema.get("allOf", ()))):
            yield self._of(Place((*path, "allOf", at)))
        if "anyOf" in schema:
            yield self._any_of(path, len(schema["anyOf"]))
        if "not" in schema:
            yield self._of(Place((*path, "not"), negated=True))
        if "if" in schema and ("then" in schema or "else" in schema):
            yield self._if(schema, path)
        yield from self._dependent(schema, path)

    def _any_of(self, path: Path, count: int) -> list[Case]:
        parts = (self._of(Place((*path, "anyOf", at))) for at in range(count))
        return list(dict.fromkeys(case for part in parts for case in part))

    def _if(self, schema: Schema, path: Path) -> list[Case]:
        def side(keyword: str, *, negated: bool) -> list[Case]:
            condition = self._of(Place((*path, "if"), negated=negated))
            if keyword not in schema or not condition:
                return condition
            return self.met(condition, self._of(Place((*path, keyword))))

        return [*side("then", negated=False), *side("else", negated=True)]

    def _dependent(self, schema: Schema, path: Path) -> Iterator[list[Case]]:
        """Yield the cases of dependent keywords: an object lacks the member, or also fits the
        dependency."""
        for keyword in ("dependentRequired", "dependentSchemas", "dependencies"):
            for name, wanted in schema.get(keyword, {}).items():
                present = [having(name)]
                if isinstance(wanted, list):
                    present = [having(name, *wanted)]
                else:
                    present = self.met(present, self._of(Place((*path, keyword, name))))
                yield [without(name), *present]

    def _unevaluated(self, found: list[Case], schema: Schema, path: Path) -> list[Case]:
        """Apply unevaluatedProperties and unevaluatedItems as one more layer around the cases found
        so far."""
        if "oneOf" in schema and (
            "unevaluatedProperties" in schema or "unevaluatedItems" in schema
        ):
            raise refusal(path, "oneOf", "is not kept beside unevaluated keywords; write anyOf")
        if "unevaluatedProperties" in schema:
            rest = (Place((*path, "unevaluatedProperties")),)
            # Not all validators count members of additionalProperties as evaluated.
            always = schema["unevaluatedProperties"] is False
            found = [replace(case, members=_sealed(case.members, rest, always)) for case in found]
        if "unevaluatedItems" in schema:
            rest = (Place((*path, "unevaluatedItems")),)
            found = [replace(case, items=_sealed_items(case.items, rest)) for case in found]
        return found

    def _one_of(self, base: list[Case], path: Path, count: int) -> list[Case]:
        plain = [self._of(Place((*path, "oneOf", at))) for at in range(count)]
        parts = [self.met(base, part) for part in plain]
        for left, right in combinations(range(count), 2):
            if self._overlap(parts[left], plain[right]) or self._overlap(parts[right], plain[left]):
                return self._told_apart(base, path, plain)
        return list(dict.fromkeys(case for part in parts for case in part))

    def _overlap(self, answers: list[Case], others: list[Case]) -> bool:
        closed, loose = [_closed(case) for case in answers], [_loose(case) for case in others]
        return any(not self.is_empty(case) for case in self.met(closed, loose))

    def _told_apart(self, base: list[Case], path: Path, plain: list[list[Case]]) -> list[Case]:
        """Return each part without the values of the others."""
        found: list[Case] = []
        try:
            for at, part in enumerate(plain):
                alone = self.met(base, part)
                for other in range(len(plain)):
                    if other != at:
                        negated = Place((*path, "oneOf", other), negated=True)
                        alone = self.met(alone, self._of(negated))
                found.extend(alone)
        except SchemaError as error:
            raise refusal(
                path,
                "oneOf",
                "has parts that one answer may fit at once; write anyOf, or tell them apart by a "
                "required property with a const",
            ) from error
        return found

    def is_empty(self, case: Case, depth: int = _LOOK_AHEAD) -> bool:
        """Return whether plainly no value fits the case, looking `depth` levels down."""
        if case.values is not None:
            return not case.values
        if case.types - {"string", "object"}:
            return False
        return ("string" not in case.types or text_language(case).is_empty) and (
            "object" not in case.types or self._no_object(case, depth)
        )

    def _no_object(self, case: Case, depth: int) -> bool:
        def nothing(conjunction: Conjunction) -> bool:
            if depth == 0 or any(one in self._open for one in conjunction):
                return False
            return all(self.is_empty(one, depth - 1) for one in self.cases(conjunction))

        return is_empty_object(case.members, nothing)


def _loose(case: Case) -> Case:
    """Return the case as the most lenient validator reads it."""
    patterns = tuple(
        (pattern, Reading.MAY_MATCH if reading is Reading.MATCHES else reading)
        for pattern, reading in case.texts.patterns
    )
    return replace(case, texts=replace(case.texts, patterns=patterns, formats=()))


def _closed(case: Case) -> Case:
    """Return the case with `Closed` members at all levels, as answers have them."""
    layers = tuple(
        MembersLayer(
            tuple((name, (Closed(below),)) for name, below in layer.properties),
            tuple((name, (Closed(below),)) for name, below in layer.patterns),
            layer.rest,
            layer.given,
        )
        for layer in case.members.layers
    )
    if closes(case.members):
        names = dict.fromkeys((*_names(layers), *case.members.required))
        patterns = tuple((name, ANYTHING) for layer in layers for name, _ in layer.patterns)
        named = tuple((name, ANYTHING) for name in names)
        layers = (*layers, MembersLayer(named, patterns, (Never(),), True))
    return replace(case, members=replace(case.members, layers=layers))


def _names(layers: tuple[MembersLayer, ...]) -> tuple[str, ...]:
    return tuple(name for layer in layers for name, _ in layer.properties)


def _sealed(members: Members, rest: Conjunction, always: bool) -> Members:
    """Add a layer for members that none of the layers constrains or, with `always`, names."""
    if any(layer.given for layer in members.layers) and not always:
        return members
    named = tuple((name, ANYTHING) for name in dict.fromkeys(_names(members.layers)))
    patterns = tuple((name, ANYTHING) for layer in members.layers for name, _ in layer.patterns)
    layer = MembersLayer(named, patterns, rest, True)
    return replace(members, layers=(*members.layers, layer))


def _sealed_items(items: Items, rest: Conjunction) -> Items:
    if any(layer.given for layer in items.layers):
        return items
    longest = max((len(layer.prefix) for layer in items.layers), default=0)
    layer = ItemsLayer((ANYTHING,) * longest, rest, True)
    return replace(items, layers=(*items.layers, layer))
