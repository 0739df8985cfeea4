"""Bounds the size of a status, so that the API server always takes it. Pure.

etcd holds objects of about 1.5 MB with all records of their field owners; messages of engines and
of other controllers have no bound. Long texts are cut, and lists lose the entries at their end,
whose number is reported.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

MOST_BYTES = 256 << 10
_MOST_TEXT = 1024  # characters; a message of a condition has no more either


def bounded(status: Mapping[str, Any]) -> dict[str, Any]:
    """Return the status with its texts cut, and without the adapters that do not fit."""
    found: dict[str, Any] = _cut(status)
    adapters = found.get("adapters")
    if not adapters or len(msgspec.json.encode(found)) <= MOST_BYTES:
        return found
    left = MOST_BYTES - len(msgspec.json.encode({**found, "adapters": []}))
    kept = []
    for adapter in adapters:
        left -= len(msgspec.json.encode(adapter)) + 1
        if left < 0:
            break
        kept.append(adapter)
    return {**found, "adapters": kept, "adaptersOmitted": len(adapters) - len(kept)}


def _cut(value: Any) -> Any:
    if isinstance(value, str):
        return value if len(value) <= _MOST_TEXT else _short(value)
    if isinstance(value, Mapping):
        return {name: _cut(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_cut(item) for item in value]
    return value


def _short(text: str) -> str:
    """Return the text's head with the number of characters that it lost."""
    more = f"… ({len(text)} characters)"
    return text[: _MOST_TEXT - len(more)] + more
