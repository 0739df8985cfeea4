"""The keywords of objects, as the grammar library takes them.

An object that names members has no others unless the schema speaks of them; the library would allow
any. Conditions between members become alternatives. Pure; used by the rewriting of a place.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from typing import Any

from atom.structured_outputs.json_schema.keywords import Path, refusal
from atom.structured_outputs.json_schema.references import SchemaDocument
from atom.structured_outputs.json_schema.sources import NamedMembers
from atom.structured_outputs.json_schema.values import anchored, counts, pattern
from atom.structured_outputs.regex import one_of_texts

Schema = dict[str, Any]
Rewrite = Callable[[Path], Any]
_CLASSES = re.compile(r"\\[wds]", re.IGNORECASE)
_NAME_KEYWORDS = {"type", "title", "description"}


def members(
    document: SchemaDocument, path: Path, rewrite: Rewrite, *, close: bool, exact: bool
) -> Schema:
    """Return the object keywords of a place. close: the members that it names are all there are."""
    schema = document.at(path)
    found = counts(schema, "minProperties", "maxProperties", path, exact=exact)
    if "properties" in schema:
        names = schema["properties"]
        found["properties"] = {name: rewrite((*path, "properties", name)) for name in names}
    if "required" in schema:
        found["required"] = list(dict.fromkeys(schema["required"]))
    if "patternProperties" in schema:
        found["patternProperties"] = _patterns(schema["patternProperties"], path, rewrite)
        _apply_to_names(schema["patternProperties"], path, rewrite, found)
    if "additionalProperties" in schema:
        found["additionalProperties"] = rewrite((*path, "additionalProperties"))
    if close:
        for name in found.get("required", ()):
            found.setdefault("properties", {}).setdefault(name, {})
        found["additionalProperties"] = False
    _check_others(schema.get("patternProperties", {}), path, found)
    _name_rule(document, path, found)
    _check_least(schema, found, path)
    return found


def _patterns(patterns: dict[str, Any], path: Path, rewrite: Rewrite) -> Schema:
    found: Schema = {}
    for text in patterns:
        expression = pattern(text, "patternProperties", path)
        one = rewrite((*path, "patternProperties", text))
        found[expression] = {"allOf": [found[expression], one]} if expression in found else one
    return found


def _check_others(patterns: dict[str, Any], path: Path, found: Schema) -> None:
    """Refuse members beside patterns that ECMA-262 and Python match with different names."""
    if found.get("additionalProperties", {}) is not False and any(map(_CLASSES.search, patterns)):
        raise refusal(
            path,
            "patternProperties",
            "with \\w, \\d or \\s is kept beside additionalProperties false only, since validators "
            "read them differently; write a class, such as [a-z]",
        )


def _apply_to_names(patterns: dict[str, Any], path: Path, rewrite: Rewrite, found: Schema) -> None:
    """Apply patterns to the named members that Python finds them in; the library does so to those
    that ECMA-262 does."""
    for text in patterns:
        for name, own in found.get("properties", {}).items():
            with contextlib.suppress(re.error):
                if re.search(text, name):
                    both = [own, rewrite((*path, "patternProperties", text))]
                    found["properties"][name] = {"allOf": both}


def _name_rule(document: SchemaDocument, path: Path, found: Schema) -> None:
    """Write `propertyNames` as a pattern of the members."""
    schema = document.at(path)
    if "propertyNames" not in schema:
        return
    rule_path: Path = (*path, "propertyNames")
    while isinstance(document.at(rule_path), dict) and "$ref" in document.at(rule_path):
        rule_path = document.target(rule_path, "$ref")
    rule = document.at(rule_path)
    if rule is False:
        found["maxProperties"] = 0
        return
    if rule is True or (rule.keys() <= _NAME_KEYWORDS and rule.get("type", "string") == "string"):
        return
    kept = rule.keys() - _NAME_KEYWORDS
    if len(kept) != 1 or "properties" in found or "patternProperties" in found:
        raise _names_not_kept(path)
    (keyword,) = kept
    if keyword == "pattern":
        expression = pattern(rule["pattern"], "propertyNames", path)
    elif keyword in ("enum", "const"):
        names = rule["enum"] if keyword == "enum" else [rule["const"]]
        expression = anchored(one_of_texts(name for name in names if isinstance(name, str)))
    elif keyword in ("minLength", "maxLength"):
        bounds = f"{rule.get('minLength', 0)},{rule.get('maxLength', '')}"
        expression = anchored(f"(?s:.){{{bounds}}}")
    else:
        raise _names_not_kept(path)
    found["patternProperties"] = {expression: found.get("additionalProperties", {})}
    found["additionalProperties"] = False


def _names_not_kept(path: Path) -> Exception:
    return refusal(
        path,
        "propertyNames",
        "is kept for one of pattern, enum, const and a length, in an object that names no members "
        "itself; write patternProperties, with additionalProperties false",
    )


def _check_least(schema: Schema, found: Schema, path: Path) -> None:
    """Refuse a count that the same member, written twice, would fulfil."""
    least = schema.get("minProperties", 0)
    if (
        least > len(found.get("required", ())) + 1
        and found.get("additionalProperties") is not False
    ):
        raise refusal(
            path, "minProperties", "is kept up to one more than the required members; leave it out"
        )
    if "patternProperties" in found and least > len(found.get("required", ())) + 1:
        raise refusal(
            path, "minProperties", "is kept up to one more than the required members; leave it out"
        )


def closing(named: NamedMembers, rest: Any = False) -> Schema:
    """Return a schema of objects without other members than the named ones, or with `rest`."""
    return {"properties": {name: {} for name in named.names}, "additionalProperties": rest}


def rest_rule(
    document: SchemaDocument, path: Path, named: NamedMembers, rewrite: Rewrite
) -> Schema | None:
    """Write `unevaluatedProperties`; None if it allows anything."""
    schema = document.at(path)
    said = schema.get("unevaluatedProperties", True)
    if said is True:
        return None
    others = ("additionalProperties", "patternProperties", "propertyNames")
    own = any(keyword in schema for keyword in others)
    if own or named.branches or any(keyword in schema for keyword in ("if", "oneOf")):
        raise refusal(
            path,
            "unevaluatedProperties",
            "is kept beside properties, $ref and allOf only; write additionalProperties in each "
            "part",
        )
    return closing(named, rewrite((*path, "unevaluatedProperties")))
