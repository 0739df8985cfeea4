"""Contents of messages, which are texts or lists of parts: join two contents into one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Message = Mapping[str, Any]


def joined(first: Any, second: Any) -> Any:
    """Join two contents into one; a blank line separates texts."""
    if not first or not second:
        return first or second or ""
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}\n\n{second}"
    return [*as_parts(first), *as_parts(second)]


def as_parts(content: Any) -> list[Any]:
    """Return the content as a list of parts."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


def as_text(content: Any) -> str:
    """Return the text of a content; parts that are not texts have none."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "\n".join(str(part.get("text", "")) for part in parts if isinstance(part, Mapping))
