"""Terminal: lines that a person types, and what is shown; plain text if it is no terminal."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TextIO

_DIM, _BOLD, _PLAIN = "\033[2m", "\033[1m", "\033[0m"
_MOST_LINES = 1000


class Terminal:
    """Reads and writes one conversation. Colours and history are for terminals alone."""

    def __init__(self, source: TextIO, out: TextIO, history: Path) -> None:
        """history: file of the lines that were typed before."""
        self._source, self._out = source, out
        self._is_terminal = source.isatty() and out.isatty()
        self._history = history
        if self._is_terminal:
            self._load_history()

    def ask(self, mark: str) -> str | None:
        """Return the next line that is typed; None at the end of the input."""
        if not self._is_terminal:
            line = self._source.readline()
            return line.rstrip("\n") if line else None
        try:
            line = input(f"{_BOLD}{mark}{_PLAIN} ")
        except EOFError:
            print(file=self._out)
            return None
        self._keep_history()
        return line

    def write(self, text: str, *, dim: bool = False) -> None:
        """Show a piece of an answer at once."""
        shown = f"{_DIM}{text}{_PLAIN}" if dim and self._is_terminal else text
        print(shown, end="", file=self._out, flush=True)

    def note(self, text: str) -> None:
        """Show a line that is no answer: on the error output if answers go to a file."""
        if self._is_terminal:
            print(f"{_DIM}{text}{_PLAIN}", file=self._out, flush=True)
        else:
            print(text, file=sys.stderr, flush=True)

    def _load_history(self) -> None:
        import readline

        with contextlib.suppress(OSError):  # none yet, or a home that cannot be read
            readline.read_history_file(self._history)
        readline.set_history_length(_MOST_LINES)

    def _keep_history(self) -> None:
        import readline

        with contextlib.suppress(OSError):
            self._history.parent.mkdir(parents=True, exist_ok=True)
            readline.write_history_file(self._history)
