"""FirstLoss: why a group of ranks cannot continue, reported once.

The end of one rank makes the others fail too, each with another message, so only the first report
is the reason. Any thread may report; all watchers of a group share one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import msgspec

# Reports a group's end: the reason, and whether the user can fix it.
OnFailure = Callable[[str, bool], None]


class LastWords(msgspec.Struct, frozen=True):
    """State why a process cannot continue, or has ended. said: it has informed the clients itself,
    with a better reason. rank: its core's, None of any other process."""

    message: str
    user_error: bool
    said: bool = False
    rank: int | None = None


class FirstLoss:
    """Report the first process that was lost. on_failure: called once at most, from the reporting
    thread; it must not block for long."""

    def __init__(self, on_failure: Callable[[LastWords], None]) -> None:
        self._on_failure = on_failure
        self._closing = threading.Event()
        self._lost = threading.Event()
        self._first = threading.Lock()  # taken for good by whose end is the reason

    def tell(self, words: LastWords) -> None:
        """Report the end of a part of the group, with its reason."""
        if self._closing.is_set() or not self._first.acquire(blocking=False):
            return
        self._lost.set()
        self._on_failure(words)

    def let_end(self) -> None:
        """Stop counting ends as failures."""
        self._closing.set()

    def is_closing(self) -> bool:
        """Return whether ends are in order."""
        return self._closing.is_set()

    def has_lost(self, within_seconds: float = 0.0) -> bool:
        """Return whether a part is gone, or is within that time."""
        return self._lost.wait(within_seconds)
