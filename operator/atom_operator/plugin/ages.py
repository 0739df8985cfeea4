"""How long ago something was, as kubectl says it. Pure."""

from __future__ import annotations

from datetime import datetime

_UNITS = (("d", 86_400), ("h", 3600), ("m", 60))


def age(text: str, now: datetime) -> str:
    """Return the age of a time that an object carries, such as 5m; empty for none."""
    try:
        seconds = (now - datetime.fromisoformat(text.replace("Z", "+00:00"))).total_seconds()
    except ValueError:
        return ""
    for unit, each in _UNITS:
        if seconds >= 2 * each:
            return f"{int(seconds // each)}{unit}"
    return f"{max(0, int(seconds))}s"
