"""A first check of a schema, in time that is linear in its length: each reachable place must have
keywords of the right form, references that resolve, and supported patterns.

The compile step determines a schema's meaning (its alternatives, whether any value fits). Pure;
used before a request is queued.
"""

from __future__ import annotations

from typing import Any

from atom.structured_outputs.json_schema.keywords import (
    REFERENCES,
    Path,
    SchemaError,
    check_keywords,
    place,
    subschemas,
)
from atom.structured_outputs.json_schema.references import SchemaDocument
from atom.structured_outputs.json_schema.values import pattern

_APART = ("$defs", "definitions")


def look_at(root: Any) -> None:
    """Check the schema's value `root`. Raises `SchemaError`."""
    document = SchemaDocument(root)
    pending: list[Path] = [()]
    seen: dict[Path, None] = {(): None}
    for path in pending:
        for reached in _reached(document, path):
            if reached not in seen:
                seen[reached] = None
                pending.append(reached)


def _reached(document: SchemaDocument, path: Path) -> list[Path]:
    schema = document.at(path)
    if isinstance(schema, bool):
        return []
    if not isinstance(schema, dict):
        raise SchemaError(f"the JSON schema at {place(path)} must be an object, true or false")
    check_keywords(schema, path)
    targets = [document.target(path, keyword) for keyword in REFERENCES if keyword in schema]
    if targets and document.refs_stand_alone:
        return targets
    if "pattern" in schema:
        pattern(schema["pattern"], "pattern", path)
    for text in schema.get("patternProperties", ()):
        pattern(text, "patternProperties", path)
    below = [(*path, *step) for step, _ in subschemas(schema) if step[0] not in _APART]
    return [*targets, *below]
