"""Convert the arguments of a call, as clients send them back, to an object."""

from __future__ import annotations

import json
from typing import Any


def read_arguments(sent: Any) -> dict[str, Any] | str:
    """Convert the arguments of a call, as a client sends them back, to an object; return text that
    is not an object unchanged.

    A model's output is accepted in any form: text that holds the object, encoded twice, with raw
    line breaks, or cut. Empty text and null are no arguments.
    """
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
