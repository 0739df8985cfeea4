"""Shows that a long step is alive: a spinner with the elapsed time on a terminal, a line now and
then elsewhere.

Writes to standard error, so that commands whose output is meant for a shell (`env`, `status
--json`) stay clean.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TextIO

PLAIN_INTERVAL_SECONDS = 30.0
SPINNER_INTERVAL_SECONDS = 0.12
DETAIL_CHARS = 70
SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def elapsed_text(seconds: float) -> str:
    """Write a time: 0.4 s, 12 s, 3 min 05 s."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{int(seconds) // 60} min {int(seconds) % 60:02d} s"


class Step:
    """`with Step("build etcd"):` prints one line at the end, and signs of life until then."""

    def __init__(
        self,
        title: str,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.title = title
        self._stream = stream or sys.stderr
        self._clock = clock
        self._detail = ""
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._show, daemon=True)

    def detail(self, text: str) -> None:
        """Say what the step does at this moment; shown with the next sign of life."""
        self._detail = text[:DETAIL_CHARS]

    def __enter__(self) -> Step:
        self._started = self._clock()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()
        mark = "✓" if kind is None else "✗"
        self._write(f"{self._clear()}{mark} {self.title} ({elapsed_text(self._elapsed())})\n")

    def _elapsed(self) -> float:
        return self._clock() - self._started

    def _clear(self) -> str:
        return "\r\x1b[K" if self._stream.isatty() else ""

    def _show(self) -> None:
        interval = SPINNER_INTERVAL_SECONDS if self._stream.isatty() else PLAIN_INTERVAL_SECONDS
        turn = 0
        while not self._done.wait(interval):
            detail = f": {self._detail}" if self._detail else ""
            if self._stream.isatty():
                turn = (turn + 1) % len(SPINNER)
                line = f"{SPINNER[turn]} {self.title} ({elapsed_text(self._elapsed())}){detail}"
                self._write(f"\r\x1b[K{line[:110]}")
            else:
                self._write(f"… {self.title} ({elapsed_text(self._elapsed())}){detail}\n")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
