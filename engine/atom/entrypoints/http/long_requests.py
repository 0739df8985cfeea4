"""Estimates from few values and characters whether a request takes long to process.

A chat template, a schema's check and the shapes of another API cost a part of a millisecond for
each message, tool or field. A long request is rendered on a thread (openai/chat_prompt.py), because
everything else of the HTTP process would wait for it.
"""

from __future__ import annotations

from collections.abc import Collection

from pydantic import BaseModel

FEW_VALUES = 256  # messages, fields, parts and items of tools, each counted by itself
FEW_CHARACTERS = 16 * 1024


def is_long(parts: object) -> bool:
    """Return whether requests, messages or tools have more than a few values or characters; the
    scan stops there."""
    values = characters = 0
    left = [parts]
    while left:
        part = left.pop()
        values += 1
        if isinstance(part, str):
            characters += len(part)
        else:
            left += _inside(part)
        if values + len(left) > FEW_VALUES or characters > FEW_CHARACTERS:
            return True
    return False


def _inside(part: object) -> list[object]:
    """List the values in a part of a request, cut off once there are too many."""
    inside: Collection[object] = ()
    if isinstance(part, BaseModel):
        inside = part.__dict__.values()
    elif isinstance(part, dict):
        inside = part.values()
    elif isinstance(part, (list, tuple)):
        inside = part
    if len(inside) > FEW_VALUES:
        return [None] * (FEW_VALUES + 1)
    return [each for each in inside if each is not None]
