"""Convert a client's structural tag to the form that is compiled.

It accepts xgrammar's form ({"type": "structural_tag", "format": ...}, as in vLLM and SGLang) and
the older list of structures after triggers. The compile server enforces or refuses its schemas and
expressions as any others of a request. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from atom.errors import RequestError
from atom.structured_outputs.json_schema import MOST_BLANKS
from atom.structured_outputs.params import MAX_SCHEMA_CHARS

MAX_TAGS = 128
_DEEPEST = 64


def client_tag(value: Any, field: str) -> str:
    """Return the tag as JSON text. Raises `RequestError` naming `field` if the value is not a
    tag."""
    tag = _parsed(value, field)
    if "format" in tag:
        found = tag["format"]
    elif isinstance(tag.get("structures"), list) and isinstance(tag.get("triggers"), list):
        found = _triggered(tag, field)
    else:
        raise _refusal(field, "needs format, or structures with triggers")
    made = {"type": "structural_tag", "format": _read(found, field, _DEEPEST)}
    text = json.dumps(made, ensure_ascii=False)
    if len(text) > MAX_SCHEMA_CHARS:
        raise _refusal(
            field, f"has {len(text)} characters; at most {MAX_SCHEMA_CHARS} are compiled"
        )
    return text


def _parsed(value: Any, field: str) -> Mapping[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise _refusal(field, f"is no JSON ({error})") from None
    if not isinstance(value, dict):
        raise _refusal(field, "must be an object")
    return value


def _triggered(tag: Mapping[str, Any], field: str) -> dict[str, Any]:
    tags = []
    for structure in tag["structures"]:
        if not isinstance(structure, dict) or not {"begin", "end"} <= structure.keys():
            raise _refusal(field, "each of structures needs begin, schema and end")
        schema = structure.get("schema")
        content = {"type": "json_schema", "json_schema": True if schema is None else schema}
        tags.append({"begin": structure["begin"], "content": content, "end": structure["end"]})
    return {
        "type": "triggered_tags",
        "triggers": tag["triggers"],
        "tags": tags,
        "at_least_one": bool(tag.get("at_least_one")),
    }


def _read(part: Any, field: str, depth: int) -> Any:
    """Convert a part to the compile server's form, in which a schema states whether it is on one
    line."""
    if depth == 0:
        raise _refusal(field, f"is more than {_DEEPEST} levels deep")
    if isinstance(part, list):
        return [_read(item, field, depth - 1) for item in part]
    if not isinstance(part, dict):
        return part
    if part.get("type") == "json_schema":
        if "json_schema" not in part:
            raise _refusal(field, "a format of type json_schema needs json_schema")
        _check_options(part, field)
        schema = json.dumps(part["json_schema"], ensure_ascii=False)
        return {"type": "json_schema", "json_schema": schema, "one_line": False}
    if part.get("type") == "regex" and not isinstance(part.get("pattern"), str):
        raise _refusal(field, "a format of type regex needs pattern, a text")
    return {key: _read(value, field, depth - 1) for key, value in part.items()}


def _check_options(part: Mapping[str, Any], field: str) -> None:
    """Refuse xgrammar's options that would change the texts of the answer."""
    blanks = part.get("max_whitespace_cnt")
    if isinstance(blanks, int) and blanks < MOST_BLANKS:
        raise _refusal(
            field,
            f"has max_whitespace_cnt {blanks}; up to {MOST_BLANKS} blanks stand between JSON's "
            f"parts: leave it out",
        )
    for option, usual in (("style", "json"), ("any_order", False), ("excludes", [])):
        if part.get(option, usual) != usual:
            raise _refusal(
                field, f"has {option} beside json_schema, which is not kept; leave it out"
            )


def _refusal(field: str, reason: str) -> RequestError:
    return RequestError(f"{field}: a structural tag {reason}", param=field)
