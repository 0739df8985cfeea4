"""Grammar: what was compiled, as it is kept and given to the processes that follow it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Grammar:
    """A compiled grammar. text: the library's, as JSON text. Two are the same only if they are one
    object: one compilation, one grammar."""

    text: str

    @property
    def size_bytes(self) -> int:
        return len(self.text)
