"""Sizes as people read them. Pure."""

from __future__ import annotations

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def size_text(size_bytes: float) -> str:
    """Return a size with three digits (four from 1000 on) and a binary unit."""
    size, unit = float(size_bytes), 0
    while round(size) >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.0f} {_UNITS[unit]}" if round(size) >= 1000 else f"{size:.3g} {_UNITS[unit]}"
