"""Show the progress of the start, on a terminal or in a log.

A terminal shows one bar per phase; a log gets a line when a phase begins, and occasionally while it
lasts. Both have the estimated seconds that are left of the phase. LLMEngine and the server report
(phase, share done).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)

from atom.utils.time_left import left_text, seconds_left

logger = logging.getLogger(__name__)

SECONDS_BETWEEN_LINES = 10.0


class StartupProgress:
    """A context manager: `show` within it, the bars are gone after it."""

    def __init__(
        self, console: Console | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """console: standard error unless given. clock: in seconds."""
        console = console or Console(stderr=True)
        self._clock = clock
        self._on_terminal = console.is_terminal
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=console,
            disable=not self._on_terminal,
        )
        self._phase = ""
        self._task: TaskID | None = None
        self._next_line = self._begun = 0.0

    def show(self, phase: str, share: float) -> None:
        """Show that `phase` is `share` (0 to 1) done; another phase means that the one before is
        complete."""
        if phase != self._phase:
            self._begin(phase)
        left = left_text(seconds_left(share, self._clock() - self._begun))
        if self._on_terminal:
            assert self._task is not None
            self._bars.update(self._task, completed=share, left=left.removeprefix(", "))
        elif self._clock() >= self._next_line:
            self._next_line = self._clock() + SECONDS_BETWEEN_LINES
            logger.info("%s: %.0f %%%s", phase, share * 100, left)

    def _begin(self, phase: str) -> None:
        if self._task is not None:
            self._bars.update(self._task, completed=1.0, left="")
        self._phase = phase
        self._next_line, self._begun = 0.0, self._clock()
        self._task = self._bars.add_task(phase, total=1.0, left="")

    def __enter__(self) -> StartupProgress:
        self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._task is not None and error is None:
            self._bars.update(self._task, completed=1.0, left="")
        self._bars.stop()
