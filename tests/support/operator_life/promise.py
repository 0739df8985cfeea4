"""Names the promises of the documents that a check of the judge holds.

docs/promises.md has the words of each promise, and a test compares both directions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

_Check = TypeVar("_Check", bound=Callable[..., object])
HELD: dict[str, list[str]] = {}  # by promise, the checks


def promise(*names: str) -> Callable[[_Check], _Check]:
    """Mark a check as the one that holds these promises."""

    def mark(check: _Check) -> _Check:
        for name in names:
            HELD.setdefault(name, []).append(f"{check.__module__}.{check.__qualname__}")
        return check

    return mark
