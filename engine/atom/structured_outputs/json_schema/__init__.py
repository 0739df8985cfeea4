"""Convert JSON schemas to the schemas that the grammar library follows.

A schema is read exactly, its references are resolved, and its keywords are rewritten. Each keyword
is enforced or refused by name; none is ignored. Pure; raises ValueError with the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from atom.structured_outputs import exact_json
from atom.structured_outputs.json_schema import values
from atom.structured_outputs.json_schema.emptiness import circular, endless
from atom.structured_outputs.json_schema.first_look import look_at
from atom.structured_outputs.json_schema.keywords import KEPT, TYPES, Path, SchemaError, place
from atom.structured_outputs.json_schema.references import SchemaDocument
from atom.structured_outputs.json_schema.rewriting import ROOT, SchemaRewriter

__all__ = [
    "MOST_BLANKS",
    "Check",
    "SchemaError",
    "check_schema",
    "library_schema",
    "read_schema",
    "without_strings",
]

# Blanks and line breaks in a row: an answer must not be white space to its end.
MOST_BLANKS = 10
_LOOSE = {"whitespace_pattern": rf"[ \n\r\t]{{1,{MOST_BLANKS}}}"}
_ONE_LINE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
# A named member must not come twice, once with a character written by its number.
_NO_NUMBERED_ESCAPES = {"json_allowed_escapes": 'nrbtf\\"'}
_MOST_TRIES = 300
_MOST_DROPPED = 40
Check = Callable[[dict[str, Any]], str]


def library_schema(
    text: str, check: Check, *, one_line: bool = False, at: Path = ()
) -> dict[str, Any]:
    """Return the library's schema of a schema given as JSON text. check: returns the library's
    reason against a schema, or nothing. at: the place in the schema whose values it describes.

    Raises ValueError with the keyword that is not enforced, its place, and the alternative.
    """
    rewriter = SchemaRewriter(SchemaDocument(read_schema(text)))
    options = dict(_ONE_LINE if one_line else _LOOSE)
    try:
        root = rewriter.root(at)
    except RecursionError:
        raise SchemaError(
            "the JSON schema leads through too many references in a row; flatten it"
        ) from None

    if rewriter.has_open_objects:
        options |= _NO_NUMBERED_ESCAPES
        rewriter.leave_out_controls()

    def whole(schema: dict[str, Any]) -> dict[str, Any]:
        return {**schema, "$defs": rewriter.definitions, "x-guidance": options}

    _check_ends(rewriter, text)
    _drop_empty_places(rewriter, text, whole, check)
    return whole(root)


def without_strings(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the library's schema of the same values but for strings."""
    others = [kind for kind in TYPES if kind not in ("string", "integer")]
    kept = {name: schema[name] for name in ("$defs", "x-guidance")}
    return {"allOf": [{"$ref": schema["$ref"]}, {"type": others}], **kept}


def check_schema(text: str) -> None:
    """Take a first look at a schema given as JSON text, in little time. Raises ValueError as
    `library_schema` does, but not for everything that it does."""
    look_at(read_schema(text))


def read_schema(text: str) -> Any:
    """Read a schema's JSON text. Raises ValueError."""
    schema = exact_json.read(text)
    if not isinstance(schema, (dict, bool)):
        raise SchemaError("the JSON schema at $ must be an object, true or false")
    return schema


def _check_ends(rewriter: SchemaRewriter, text: str) -> None:
    """Refuse references in a circle, and a root that recurs without an end; other definitions that
    do are of no value."""
    name = circular(rewriter.definitions)
    if name is not None:
        raise SchemaError(
            f"the JSON schema at {place(rewriter.paths[name])} refers to itself with nothing in "
            f"between; mend it"
        )
    lost = endless(rewriter.definitions)
    if ROOT in lost:
        raise _nothing_fits(rewriter.paths[lost[-1]], text)
    rewriter.definitions |= dict.fromkeys(lost, False)


def _drop_empty_places(
    rewriter: SchemaRewriter,
    text: str,
    whole: Callable[[dict[str, Any]], dict[str, Any]],
    check: Check,
) -> None:
    """Replace the places without a value, the deepest first, until the library takes the rest.
    Raises `SchemaError` if it does not take the root, or refuses a place for another reason."""
    first: SchemaError | None = None
    root = {"$ref": f"#/$defs/{ROOT}"}
    deepest = sorted(rewriter.places, key=lambda item: -len(item[0]))
    for _ in range(_MOST_DROPPED):
        reason = check(whole(root))
        if not reason:
            return
        path: Path = ()
        schema = None
        for found_path, found in deepest[:_MOST_TRIES]:
            if isinstance(found, dict) and found != values.NEVER and (its := check(whole(found))):
                path, schema, reason = found_path, found, its
                break
        error = _refusal(path, text, reason)
        if not any(words in reason for words in _CONTRADICTIONS):
            raise error
        first = first or error
        if schema is None:
            break
        if values.cut_prefix(schema, rewriter.least_items(path)):
            continue
        if schema is rewriter.definitions[ROOT]:
            break
        schema.clear()
        schema |= values.NEVER
    raise first or _nothing_fits((), text)


def _said(path: Path, text: str) -> str:
    """Return the keywords at a place."""
    found = read_schema(text)
    for part in path:
        found = found[part]
    said = [keyword for keyword in found if keyword in KEPT] if isinstance(found, dict) else []
    return f"the JSON schema's {', '.join(said) or 'false'} at {place(path)}"


def _nothing_fits(path: Path, text: str) -> SchemaError:
    return SchemaError(
        f"{_said(path, text)} leaves no value that fits: it contradicts itself or what is asked "
        f"elsewhere, or recurs without an end; mend it"
    )


def _refusal(path: Path, text: str, reason: str) -> SchemaError:
    """Return the error of a place that the library refuses. reason: the library's."""
    for words, remedy in _REMEDIES.items():
        if words in reason:
            return SchemaError(f"{_said(path, text)} {remedy}")
    if any(words in reason for words in _CONTRADICTIONS):
        return _nothing_fits(path, text)
    return SchemaError(f"{_said(path, text)} is not kept by this server: {reason}")


# The library's words, and what they mean to a client.
_REMEDIES = {
    "oneOf constraints are not supported": "has parts that one answer may fit at once; write anyOf",
    "not disjoint": "has patterns that one member's name may fit at once; write them apart",
    "min/maxProperties only supported": (
        "is kept if every named member is required; leave the number of members out"
    ),
    "schema too large": "has too many alternatives together; make it smaller",
    "panic": "makes too large a grammar; make it smaller",
    "too many": "makes too large a grammar; make it smaller",
    "too large": "makes too large a grammar; make it smaller",
    "fuel": "makes too large a grammar; make it smaller",
}
_CONTRADICTIONS = ("Unsatisfiable", "Failed to generate regex", "schema is false", "empty")
