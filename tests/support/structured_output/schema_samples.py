"""JSON schemas made at random over the keywords of draft 4 to 2020-12, and the validators to hold
answers to. Half of them ask for something odd; most have values that fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import jsonschema
from jsonschema.validators import extend

DRAFTS = {
    "http://json-schema.org/draft-04/schema#": jsonschema.Draft4Validator,
    "http://json-schema.org/draft-06/schema#": jsonschema.Draft6Validator,
    "http://json-schema.org/draft-07/schema#": jsonschema.Draft7Validator,
    "https://json-schema.org/draft/2019-09/schema": jsonschema.Draft201909Validator,
    "https://json-schema.org/draft/2020-12/schema": jsonschema.Draft202012Validator,
}
NAMES = ("a", "b", "kind", 'q"', "back\\slash", "é", "😀", "line\nend", "$ref", "with space")
TEXTS = ("", "a", "ab", "red", 'q"uote', "\\", "\n", "é", "😀", "2024-02-29", "\x01", "a/b")
NUMBERS = (0, 1, -1, 7, 100, 2.5, -0.5, 0.1, 2**63 + 1, -(2**70), 10**30, 9007199254740993)
FORMATS = ("date", "time", "date-time", "email", "ipv4", "ipv6", "uuid", "uri", "hostname",
           "duration", "int32", "password", "json-pointer")  # fmt: skip
PATTERNS = (
    "^[a-z]+$", "b", r"^\d{3}-\d{4}$", r"^\S+$", "^a\nb$", r"^[\t\n]x$", r'["\\]{2}', r"\\", "[^a]",
    "^.{2,5}$", r"^\w+\s?\w*$", "^(red|green)$", "^$", "x*", "^é+$", r"^\u00e9$", "^[^\\W_]+$",
    "a$|^b", r"^\x22\x5c$", "^[ -~]*$", "(^|,)a", r"^\D{1,3}$", r"[\0\x1f]", "^😀{1,2}$",
)  # fmt: skip


def validator_of(schema: Any) -> Any:
    """The validator of the draft that a schema names, with OpenAPI's nullable."""
    said = schema.get("$schema") if isinstance(schema, dict) else None
    draft = DRAFTS.get(said, jsonschema.Draft202012Validator)
    plain = draft.VALIDATORS["type"]

    def typed(validator: Any, types: Any, instance: Any, owner: Any) -> Iterator[Any]:
        if not (instance is None and owner.get("nullable") is True):
            yield from plain(validator, types, instance, owner)

    return extend(draft, {"type": typed})(schema, format_checker=draft.FORMAT_CHECKER)


class SchemaSamples:
    """schema(): another one each time, from the same random numbers."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._draft = 2020
        self._definitions: list[str] = []

    def schema(self) -> dict[str, Any]:
        said = self._random.choice([None, *DRAFTS])
        self._draft = _number(said)
        self._definitions = self._random.sample(("A", "B/c", "d~e f"), self._random.randint(0, 2))
        schema = self._any(0)
        if not isinstance(schema, dict) or "$ref" in schema:
            schema = {"properties": {"r": schema}}
        if said:
            schema["$schema"] = said
        keyword = "$defs" if self._draft >= 2019 else "definitions"
        if self._definitions:
            schema[keyword] = {
                name: {"type": "object", "properties": {"n": self._any(2)}}
                if self._chance(0.5)
                else self._typed(2)
                for name in self._definitions
            }
        return schema

    def _chance(self, likelihood: float) -> bool:
        return self._random.random() < likelihood

    def _any(self, depth: int) -> Any:
        if self._chance(0.02):
            return True if self._draft > 4 else {}
        if self._definitions and self._chance(0.12):
            return self._reference()
        if depth < 3 and self._chance(0.25):
            return self._combined(depth + 1)
        if self._chance(0.12):
            return self._listed()
        return self._typed(depth)

    def _reference(self) -> dict[str, Any]:
        name = self._random.choice(self._definitions)
        keyword = "$defs" if self._draft >= 2019 else "definitions"
        escaped = name.replace("~", "~0").replace("/", "~1").replace(" ", "%20")
        return {"$ref": f"#/{keyword}/{escaped}"}

    def _listed(self) -> dict[str, Any]:
        pool = [*TEXTS, *NUMBERS, None, True, False, [1, "a"], {"a": [None]}, {}]
        if self._draft > 4 and self._chance(0.4):
            return {"const": self._random.choice(pool)}
        schema: dict[str, Any] = {"enum": self._random.sample(pool, self._random.randint(1, 4))}
        if self._chance(0.3):
            schema["type"] = self._random.choice((["string", "null"], "number", "string"))
            if self._chance(0.3):
                schema["nullable"] = True
        return schema

    def _typed(self, depth: int) -> dict[str, Any]:
        makers: list[tuple[str, Callable[[int], dict[str, Any]]]] = [
            ("string", self._string),
            ("integer", self._number),
            ("number", self._number),
            ("boolean", lambda _: {}),
            ("null", lambda _: {}),
        ]
        if depth < 3:
            makers += [("object", self._object)] * 4 + [("array", self._array)] * 2
        name, maker = self._random.choice(makers)
        schema = {"type": name, **maker(depth)}
        if self._chance(0.1):
            schema["type"] = [name, "null"]
        if self._chance(0.05):
            del schema["type"]
        if self._chance(0.05):
            schema["nullable"] = True
        if self._chance(0.1):
            schema.update(title="T", description="d", default=1, **{"x-note": {"type": "x"}})
        return schema

    def _string(self, _: int) -> dict[str, Any]:
        schema: dict[str, Any] = {}
        if self._chance(0.3):
            schema["minLength"] = self._random.randint(0, 4)
        if self._chance(0.3):
            schema["maxLength"] = self._random.choice((2, 5, 8, 300))
        if self._chance(0.4):
            schema["pattern"] = self._random.choice(PATTERNS)
        if self._chance(0.2):
            schema["format"] = self._random.choice(FORMATS)
        return schema

    def _number(self, _: int) -> dict[str, Any]:
        schema: dict[str, Any] = {}
        low = self._random.choice((*NUMBERS, -1000, 0.25))
        for keyword, bound in (
            ("minimum", low),
            ("maximum", low + self._random.choice((0, 1, 50))),
        ):
            if self._chance(0.4):
                schema[keyword] = bound
                exclusive = "exclusive" + keyword.capitalize()
                if self._chance(0.3):
                    if self._draft == 4:
                        schema[exclusive] = True
                    else:
                        schema[exclusive] = schema.pop(keyword)
        if self._chance(0.15):
            schema["multipleOf"] = self._random.choice((2, 5, 7, 10, 0.5, 0.25, 100, 0.1))
        return schema

    def _object(self, depth: int) -> dict[str, Any]:
        names = self._random.sample(NAMES, self._random.randint(0, 4))
        schema: dict[str, Any] = {}
        if names or self._chance(0.5):
            schema["properties"] = {name: self._any(depth + 1) for name in names}
        if self._chance(0.7):
            required = [name for name in names if self._chance(0.6)]
            if required or self._draft > 4:
                schema["required"] = required
        if self._chance(0.4):
            rest = self._any(depth + 1)
            schema["additionalProperties"] = self._random.choice((True, False, rest))
        if self._chance(0.1):
            schema["patternProperties"] = {self._random.choice(PATTERNS): self._any(depth + 1)}
        if self._chance(0.08):
            schema["minProperties"] = self._random.randint(0, 2)
        if self._chance(0.08):
            schema["maxProperties"] = self._random.randint(0, 4)
        if self._draft > 4 and self._chance(0.06):
            schema["propertyNames"] = self._random.choice(
                (
                    {"pattern": self._random.choice(PATTERNS)},
                    {"maxLength": 3},
                    {"enum": list(NAMES)},
                )
            )
        if len(names) > 1 and self._chance(0.08):
            keyword = "dependentRequired" if self._draft >= 2019 else "dependencies"
            schema[keyword] = {names[0]: [names[1]]}
        if self._draft >= 2019 and self._chance(0.05):
            schema["unevaluatedProperties"] = False
        return schema

    def _array(self, depth: int) -> dict[str, Any]:
        schema: dict[str, Any] = {}
        if self._chance(0.8):
            schema["items"] = self._any(depth + 1)
        if self._chance(0.3):
            prefix = [self._any(depth + 1) for _ in range(self._random.randint(1, 3))]
            rest = schema.pop("items", None)
            first, behind = ("prefixItems", "items") if self._draft == 2020 else (
                "items", "additionalItems")  # fmt: skip
            schema[first] = prefix
            if rest is not None:
                schema[behind] = self._random.choice((False, rest))
        if self._chance(0.3):
            schema["minItems"] = self._random.randint(0, 2)
        if self._chance(0.3):
            schema["maxItems"] = self._random.randint(1, 4)
        if self._chance(0.05):
            schema["uniqueItems"] = True
        if self._draft > 4 and self._chance(0.05):
            schema["contains"] = self._any(depth + 1)
        return schema

    def _combined(self, depth: int) -> dict[str, Any]:
        keyword = self._random.choice(("anyOf", "anyOf", "oneOf", "allOf", "not", "if"))
        if keyword == "not":
            return {**self._typed(depth), "not": self._simple()}
        if keyword == "if":
            if self._draft < 7:
                return self._typed(depth)
            return {
                **self._object(depth),
                "if": {"properties": {"kind": {"const": "a"}}, "required": ["kind"]},
                "then": {"required": ["b"]},
                "else": {"properties": {"a": self._any(depth + 1)}},
            }
        if keyword == "oneOf" and self._chance(0.6):
            return {keyword: [self._tagged(depth, tag) for tag in ("x", "y", "z")]}
        parts = [self._any(depth + 1) for _ in range(self._random.randint(1, 3))]
        if keyword == "allOf":
            parts = [self._object(depth) for _ in range(2)] + parts[:0]
        beside = self._object(depth) if self._chance(0.2) else {}
        return {**beside, keyword: parts}

    def _tagged(self, depth: int, tag: str) -> dict[str, Any]:
        part = {"type": "object", **self._object(depth)}
        tagged = {"enum": [tag]} if self._draft == 4 else {"const": tag}
        part["properties"] = {"kind": tagged, **part.get("properties", {})}
        part["properties"]["kind"] = tagged
        part["required"] = sorted({"kind", *part.get("required", ())})
        return part

    def _simple(self) -> dict[str, Any]:
        return self._random.choice(
            (
                {"type": "null"},
                {"enum": ["a", 1, None]},
                {"required": ["a"]},
                {"minimum": 5},
                {"pattern": "a"},
                {"maxLength": 2},
            )
        )


def _number(said: str | None) -> int:
    return 2020 if said is None else (4, 6, 7, 2019, 2020)[list(DRAFTS).index(said)]
