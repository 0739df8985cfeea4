"""SchemaRewriter: a client's schema as the schema that the grammar library reads.

The library knows draft 2020-12's keywords in part, follows JSON pointers, and leaves objects open.
So references become definitions of one level, spellings of other drafts become its own, expressions
its notation, objects that name members are closed, and keywords that it lacks become keywords that
it has, or are refused by place. Pure.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from atom.structured_outputs.json_schema import members, values
from atom.structured_outputs.json_schema.conditions import conditions, exclusive
from atom.structured_outputs.json_schema.keywords import (
    REFERENCES,
    Path,
    SchemaError,
    check_keywords,
    place,
    refusal,
)
from atom.structured_outputs.json_schema.references import SchemaDocument
from atom.structured_outputs.json_schema.sources import named_members

Schema = dict[str, Any]
_SOURCES = (*REFERENCES, "allOf", "anyOf", "oneOf", "dependentSchemas", "dependencies",
            "dependentRequired", "not", "if")  # fmt: skip
_MEMBERS = ("properties", "required", "additionalProperties", "patternProperties", "propertyNames",
            "unevaluatedProperties")  # fmt: skip
MAX_PLACES = 20_000
ROOT = "s0"  # the first definition


class SchemaRewriter:
    """Rewrite the places of one document. definitions: of the targets of references, by name;
    places: what each place has become, in the order of their rewriting. has_open_objects: an object
    may have members beside those of a given name."""

    def __init__(self, document: SchemaDocument) -> None:
        self._document = document
        self._names: dict[tuple[Path, bool, bool], str] = {}
        self._pending: list[tuple[tuple[Path, bool, bool], str]] = []
        self.definitions: dict[str, Any] = {}
        self.paths: dict[str, Path] = {}
        self.places: list[tuple[Path, Any]] = []
        self.has_open_objects = False

    def root(self, path: Path) -> Schema:
        """Rewrite a place and all that it refers to, as a reference to its definition. Raises
        `SchemaError`."""
        found = self._reference(path, loose=False, exact=False)
        for (target, loose, exact), name in self._pending:  # grows meanwhile
            self.definitions[name] = self._place(target, loose=loose, exact=exact)
        return found

    def least_items(self, path: Path) -> int:
        """Return the number of items that a client's schema asks for."""
        least: int = self._document.at(path).get("minItems", 0)
        return least

    def leave_out_controls(self) -> None:
        """Leave out the texts that need a character written by its number, so that a place whose
        texts all do is found to be empty."""
        for _, found in self.places:
            if isinstance(found, dict) and any(
                key in found for key in ("pattern", "enum", "const")
            ):
                found["allOf"] = [*found.get("allOf", ()), {"pattern": values.NO_CONTROLS}]

    def _reference(self, path: Path, *, loose: bool, exact: bool) -> Schema:
        key = (path, loose, exact)
        if key not in self._names:
            self._names[key] = f"s{len(self._names)}"
            self._pending.append((key, self._names[key]))
        name = self._names[key]
        self.paths[name] = path
        return {"$ref": f"#/$defs/{name}"}

    def _place(self, path: Path, *, loose: bool = False, exact: bool = False) -> Any:
        """Rewrite one place. loose: its objects stay open, since the place that applies it closes
        them; exact: nothing may be narrowed."""
        schema = self._document.at(path)
        if isinstance(schema, bool):
            return {} if schema else False
        if not isinstance(schema, dict):
            raise SchemaError(f"the JSON schema at {place(path)} must be an object, true or false")
        check_keywords(schema, path)
        found = self._rewritten(schema, path, loose=loose, exact=exact)
        self.places.append((path, found))
        self.has_open_objects |= _is_open(found)
        if len(self.places) > MAX_PLACES:
            raise SchemaError(
                f"the JSON schema has more than {MAX_PLACES} places with its references followed; "
                f"make it smaller"
            )
        return found

    def _rewritten(self, schema: Schema, path: Path, *, loose: bool, exact: bool) -> Any:
        references = [keyword for keyword in REFERENCES if keyword in schema]
        if references and self._document.refs_stand_alone:
            target = self._document.target(path, references[0])
            return self._reference(target, loose=loose, exact=exact)
        named = named_members(self._document, path)
        applied = sum(keyword in schema for keyword in _SOURCES)
        applied += len(schema.get("allOf", "1")) - 1
        alone = applied == 0
        own = any(keyword in schema for keyword in _MEMBERS)
        close = named.closable and not loose and (alone or not named.patterns)
        close &= schema.get("minProperties", 0) <= len(named.names) or named.patterns
        # Only one source, and no members beside it: it closes the objects that it names itself.
        inner_loose = loose if applied == 1 and not own else True
        rest = members.rest_rule(self._document, path, named, self._place)
        parts, found = self._own(
            schema, path, alone=alone and not loose, close=close and alone, exact=exact
        )
        inner = partial(self._place, loose=inner_loose, exact=exact)
        for keyword in references:
            target = self._document.target(path, keyword)
            parts.append(self._reference(target, loose=inner_loose, exact=exact))
        parts += [inner((*path, "allOf", at)) for at in range(len(schema.get("allOf", ())))]
        parts += self._alternatives(schema, path, loose=inner_loose, exact=exact)
        parts += conditions(schema, path, partial(self._place, loose=True, exact=exact))
        if rest is not None:
            parts.append(rest)
        elif close and not alone and inner_loose:
            parts.append(members.closing(named))
        return _conjunction(found, parts)

    def _own(
        self, schema: Schema, path: Path, *, alone: bool, close: bool, exact: bool
    ) -> tuple[list[Schema], Schema]:
        """Rewrite the keywords that refer to no schema of the same value; return further parts that
        the value must fit, and the keywords."""
        found, parts = values.texts(schema, path)
        found |= _types(schema)
        found |= values.listed(schema, path)
        found |= values.numbers(schema, path)
        inner = partial(self._place, exact=exact)
        found |= values.array(schema, path, inner, alone=alone, exact=exact)
        found |= members.members(self._document, path, inner, close=close, exact=exact)
        arrays = values.different(schema, found.get("items"), path)
        if arrays is not None:
            for keyword in ("items", "minItems", "maxItems"):
                found.pop(keyword, None)
            found["enum"] = arrays
            if schema.get("type") != "array":
                raise refusal(path, "uniqueItems", "is kept beside type array only; add it")
        return parts, found

    def _alternatives(
        self, schema: Schema, path: Path, *, loose: bool, exact: bool
    ) -> list[Schema]:
        found = []
        for keyword in ("anyOf", "oneOf"):
            count = len(schema.get(keyword, ()))
            sole = exact or (keyword == "oneOf" and count > 1)
            inner = partial(self._place, loose=loose, exact=sole)
            apart = exclusive(schema, path, inner) if keyword == "oneOf" and count else None
            if apart is not None:
                found.append({"anyOf": apart})
            elif count:
                options = [inner((*path, keyword, at)) for at in range(count)]
                found.append({keyword if count > 1 else "allOf": options})
        return found


def _types(schema: Schema) -> Schema:
    """Return `type`, with what `nullable` adds."""
    if "type" not in schema:
        return {}
    said = schema["type"]
    names = [said] if isinstance(said, str) else list(said)
    if schema.get("nullable") is True:
        names.append("null")
    return {"type": list(dict.fromkeys(names))}


def _is_open(schema: Any) -> bool:
    """Return whether objects have members of a given name, and others."""
    if not isinstance(schema, dict):
        return False
    others = schema.get("additionalProperties", {}) is not False or "patternProperties" in schema
    named = "properties" in schema or "required" in schema
    return named and others


def _conjunction(found: Schema, parts: list[Schema]) -> Any:
    """Return one schema of the keywords and the further parts."""
    if not parts:
        return found
    if not found and len(parts) == 1:
        return parts[0]
    return {**found, "allOf": parts}
