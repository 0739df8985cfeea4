"""Which schemas a place applies to the same value (by `$ref`, `allOf`, `anyOf` and their kin), and
which members they name together. Pure; used by the rewriting of objects."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from atom.structured_outputs.json_schema.keywords import REFERENCES, Path
from atom.structured_outputs.json_schema.references import SchemaDocument

_LISTS = ("allOf", "anyOf", "oneOf")
_OPEN = ("additionalProperties", "unevaluatedProperties", "propertyNames")


@dataclass(slots=True)
class NamedMembers:
    """Hold the members that a place and its sources name, in order. named: some source names
    members; patterns: by patterns; open: some speaks of others; branches: some are named in
    alternatives only."""

    names: dict[str, None]
    named: bool = False
    patterns: bool = False
    open: bool = False
    branches: bool = False

    @property
    def closable(self) -> bool:
        return self.named and not self.open


def sources(document: SchemaDocument, path: Path) -> Iterator[tuple[Path, bool]]:
    """Yield (path, whether it is an alternative) of the schemas that apply beside a place's own
    keywords."""
    schema = document.at(path)
    if not isinstance(schema, dict):
        return
    for keyword in REFERENCES:
        if keyword in schema:
            yield document.target(path, keyword), False
            if document.refs_stand_alone:
                return
    for keyword in _LISTS:
        for at in range(len(schema.get(keyword, ()))):
            yield (*path, keyword, at), keyword != "allOf"
    for keyword in ("if", "then", "else"):
        if keyword in schema:
            yield (*path, keyword), True
    for keyword in ("dependentSchemas", "dependencies"):
        for name, one in schema.get(keyword, {}).items():
            if not isinstance(one, list):
                yield (*path, keyword, name), True


def named_members(document: SchemaDocument, path: Path) -> NamedMembers:
    """Collect the members that a place names, itself or by its sources."""
    found = NamedMembers({})
    pending, seen = [(path, False)], set()
    for at, branch in pending:
        if at in seen:
            continue
        seen.add(at)
        if not (document.refs_stand_alone and _refers(document.at(at))):
            _add(found, document.at(at), branch)
        pending += [(source, branch or other) for source, other in sources(document, at)]
    return found


def _refers(schema: Any) -> bool:
    return isinstance(schema, dict) and any(keyword in schema for keyword in REFERENCES)


def _add(found: NamedMembers, schema: Any, branch: bool) -> None:
    if not isinstance(schema, dict):
        return
    properties = schema.get("properties")
    found.patterns |= "patternProperties" in schema
    found.named |= properties is not None or "patternProperties" in schema
    found.branches |= branch and properties is not None
    found.open |= any(keyword in schema for keyword in _OPEN)
    found.names |= dict.fromkeys(properties or ())
    found.names |= dict.fromkeys(schema.get("required", ()))
    for names in schema.get("dependentRequired", {}).values():
        found.names |= dict.fromkeys(names)
    for names in schema.get("dependencies", {}).values():
        found.names |= dict.fromkeys(names if isinstance(names, list) else ())
