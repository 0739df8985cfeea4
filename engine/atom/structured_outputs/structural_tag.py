"""The JSON schemas inside of xgrammar's structural tags. Pure; used by the compile server."""

from __future__ import annotations

import json
from typing import Any

from atom.structured_outputs.json_schema import with_lengths_as_patterns


def tag_with_lengths_as_patterns(text: str) -> str:
    """Write a structural tag with its schemas as `with_lengths_as_patterns` makes them."""
    return json.dumps(_changed(json.loads(text)), ensure_ascii=False)


def _changed(part: Any) -> Any:
    if isinstance(part, list):
        return [_changed(item) for item in part]
    if not isinstance(part, dict):
        return part
    if part.get("type") == "json_schema":
        return {**part, "json_schema": with_lengths_as_patterns(part["json_schema"])}
    return {key: _changed(value) for key, value in part.items()}
