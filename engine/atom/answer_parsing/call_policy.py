"""The rules by which text becomes a tool call; they hold for every family.

1. A call's name is the name of a tool of the request. Any other text stays text.
2. The marks of a family end names and values. Names lose blanks, quotes and any text after a
   mark.
3. One reader repairs arguments that are not valid JSON (json_value.py), or the text stays text.
4. A call that cannot be parsed stays text: it never becomes a call with empty arguments.
5. Marks around a call that was found are never content.
6. A text and its pieces give the same calls.

Work is linear in the length of an answer: text that looked like a call but is not one is read again
for at most `MOST_READ_AGAIN` characters in all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from atom.answer_parsing.tools import Tools

MOST_READ_AGAIN = 1 << 19
_NAME_END = re.compile(r"[<\[\n{]")
_NAMESPACE = "functions."


def known_name(written: str, tools: Tools) -> str:
    """Return the tool that a written name means; "" for none."""
    if written in tools:
        return written
    name = _NAME_END.split(written.strip(), maxsplit=1)[0].strip(" \t\r\"'`:")
    if name in tools:
        return name
    name = name.removeprefix(_NAMESPACE)
    return name if name in tools else ""


def properties_of(parameters: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return the arguments that a tool's schema names."""
    found = (parameters or {}).get("properties")
    return found if isinstance(found, Mapping) else {}


def property_before(text: str, parameters: Mapping[str, Any] | None) -> str:
    """Return the longest property whose name the text begins with, as a whole word; "" for none."""
    return max(
        (
            key for key in properties_of(parameters)
            if text.startswith(key) and not text[len(key) : len(key) + 1].isalnum()
        ),
        key=len, default="",
    )  # fmt: skip


def name_and_property(text: str, tools: Tools) -> tuple[str, str]:
    """Split a tool's name from one of its properties if the mark between them is missing; return
    empty texts if no pair, or more than one, fits."""
    found = [
        (name, key) for name in tools
        if text.startswith(name)
        and (key := text[len(name) :].strip()) in properties_of(tools[name])
    ]  # fmt: skip
    return found[0] if len(found) == 1 else ("", "")
