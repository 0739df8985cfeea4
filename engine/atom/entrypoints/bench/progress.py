"""Progress: shows how far a benchmark is while it runs: one line that is redrawn in a terminal, and
separate lines in a log.

Written to standard error, so that standard output holds the report alone. Knows no request; the
caller counts sent and answered requests.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TextIO

from atom.entrypoints.bench.exchange import Exchange
from atom.utils.time_left import left_text, seconds_left

TERMINAL_SECONDS = 0.25
LOG_SECONDS = 10.0
_ERASE_LINE = "\r\x1b[2K"


class Progress:
    """Count one run's requests. label: of the run; total: of its requests."""

    def __init__(self, label: str, total: int) -> None:
        self._label = label
        self._total = total
        self._sent = 0
        self._answered = 0
        self._failed = 0
        self._output_tokens = 0
        self._started = asyncio.get_running_loop().time()

    def sent(self) -> None:
        self._sent += 1

    def answered(self, exchange: Exchange) -> None:
        self._answered += 1
        self._failed += exchange.error is not None
        self._output_tokens += exchange.output_tokens

    def line(self) -> str:
        elapsed = asyncio.get_running_loop().time() - self._started
        minutes, seconds = divmod(int(elapsed), 60)
        speed = self._output_tokens / elapsed if elapsed else 0.0
        left = seconds_left(self._answered / self._total, elapsed) if self._total else None
        # Before the figures: a narrow terminal cuts the end of the line.
        rest = left_text(left) if self._answered < self._total else ""
        return (
            f"{self._label}: {self._answered} of {self._total} answered{rest}, "
            f"{self._sent - self._answered} in flight, {self._failed} failed, "
            f"{speed:,.0f} output tok/s, {minutes}:{seconds:02}"
        )


@asynccontextmanager
async def shown(progress: Progress, out: TextIO, *, enabled: bool = True) -> AsyncIterator[None]:
    """Show progress until the block ends: redrawn in a terminal, otherwise a line every ten
    seconds."""
    if not enabled:
        yield
        return
    is_terminal = out.isatty()

    def draw() -> None:
        line = progress.line()
        if is_terminal:
            columns = shutil.get_terminal_size().columns
            out.write(_ERASE_LINE + line[: columns - 1])
        else:
            out.write(line + "\n")
        out.flush()

    async def redraw() -> None:
        while True:
            await asyncio.sleep(TERMINAL_SECONDS if is_terminal else LOG_SECONDS)
            draw()

    drawing = asyncio.create_task(redraw())
    try:
        yield
    finally:
        drawing.cancel()
        with suppress(asyncio.CancelledError):
            await drawing
        draw()
        if is_terminal:
            out.write("\n")
            out.flush()
