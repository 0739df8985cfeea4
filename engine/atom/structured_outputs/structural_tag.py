"""The schemas and expressions inside of xgrammar's structural tags. Pure; used by the compile
server."""

from __future__ import annotations

import json
from typing import Any

from atom.structured_outputs.json_schema import schema_to_grammar
from atom.structured_outputs.regex import regex_to_grammar


def tag_with_grammars(text: str) -> str:
    """Write a structural tag with a grammar for each schema and expression in it.

    Raises ValueError for one that is not kept."""
    return json.dumps(_changed(json.loads(text)), ensure_ascii=False)


def _schema(part: dict[str, Any]) -> str:
    try:
        return schema_to_grammar(
            part["json_schema"],
            one_line=part["one_line"],
            at=tuple(part.get("at", ())),
            bare=part.get("bare", False),
        )
    except ValueError as error:
        tool = part.get("tool")
        raise ValueError(f"tool {tool!r}: {error}" if tool else str(error)) from None


def _changed(part: Any) -> Any:
    if isinstance(part, list):
        return [_changed(item) for item in part]
    if not isinstance(part, dict):
        return part
    if part.get("type") == "json_schema":
        return {"type": "grammar", "grammar": _schema(part)}
    if part.get("type") == "regex":
        return {"type": "grammar", "grammar": regex_to_grammar(part["pattern"])}
    return {key: _changed(value) for key, value in part.items()}
