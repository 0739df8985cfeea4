"""Arguments of a call as clients send them back, to the object that they say."""

from __future__ import annotations

import json
from typing import Any


def read_arguments(sent: Any) -> dict[str, Any] | str:
    """Arguments of a call as a client sends them back: the object, or the text that is none.

    What a model wrote is taken in whatever form: a text that holds the object, twice encoded, with
    raw line breaks, cut, or no object at all; nothing and null are no arguments."""
    value = sent
    for _ in range(2):  # a text within a text
        if not isinstance(value, str):
            break
        if not value.strip():
            return {}
        try:
            value = json.loads(value, strict=False)
        except (ValueError, RecursionError):
            break
    if value is None:
        return {}
    if isinstance(value, dict):
        return value
    return sent if isinstance(sent, str) else json.dumps(sent, ensure_ascii=False)
