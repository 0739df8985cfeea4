"""StagesShown: the stages of a search for advice, one line each on a terminal, with the estimated
seconds that are left of each part.

A part is estimated by itself, since simulations of its forms are alike. Anything but a terminal
gets no line, because standard error holds the errors alone there.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TextIO

from atom.advisor.advice import Stage
from atom.utils.time_left import left_text, seconds_left


class StagesShown:
    def __init__(self, out: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        """clock: in seconds."""
        self._out, self._clock = out, clock
        self._doing = ""
        self._begun = 0.0

    def show(self, stage: Stage) -> None:
        """Show a stage that begins."""
        if stage.doing != self._doing or stage.done == 0:
            self._doing, self._begun = stage.doing, self._clock()
        if not self._out.isatty():
            return
        left = left_text(seconds_left(stage.done / stage.of, self._clock() - self._begun))
        line = f"{stage.doing} {stage.label} ({stage.done + 1} of {stage.of}{left})"
        print(line, file=self._out, flush=True)
