"""Write another command line over this process's own, as the system shows it to others.

A copy must not look like the process that it was copied from: tests find processes by their words.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

# Words that a zygote is started with, to have room for those of its copies.
ROOM = "-" * 4000
_FIRST_BYTE, _LAST_BYTE = 45, 46  # arg_start and arg_end behind the name, in proc(5)


class _Area:
    """The memory that holds the command line."""

    start = 0
    size = 0


def write_command_line(words: Sequence[str]) -> None:
    """Write the words, as many bytes of them as the first command line had; empty words follow."""
    if not _Area.size:
        facts = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        _Area.start = int(facts[_FIRST_BYTE])
        _Area.size = int(facts[_LAST_BYTE]) - _Area.start
    line = b"".join(word.encode() + b"\0" for word in words)[: _Area.size - 1]
    ctypes.memset(_Area.start, 0, _Area.size)
    ctypes.memmove(_Area.start, line, len(line))
