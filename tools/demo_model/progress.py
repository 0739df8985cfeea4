"""A progress line on stderr: redrawn in a terminal, one line per twentieth elsewhere.

Knows nothing of what progresses; the clock is a parameter. (rich would do this better, but the
training script must run where only torch, tokenizers and safetensors are installed.)
"""

import sys
from collections.abc import Callable
from typing import TextIO


class Progress:
    def __init__(
        self, label: str, total: int, clock: Callable[[], float], stream: TextIO = sys.stderr
    ) -> None:
        self._label, self._total, self._clock, self._stream = label, total, clock, stream
        self._started = clock()
        self._drawn = -1

    def advance(self, done: int, note: str = "") -> None:
        """Shows that `done` of the total are finished."""
        terminal = self._stream.isatty()
        twentieth = done * (100 if terminal else 20) // self._total
        if twentieth == self._drawn and done < self._total:
            return
        self._drawn = twentieth
        elapsed = self._clock() - self._started
        left = elapsed / max(done, 1) * (self._total - done)
        bar = "█" * (done * 24 // self._total)
        line = (
            f"{self._label} {bar:░<24} {done}/{self._total}  "
            f"{elapsed:.0f} s, {left:.0f} s left  {note}"
        )
        end = "\n" if not terminal or done >= self._total else ""
        print(f"\r{line}" if terminal else line, end=end, file=self._stream, flush=True)
