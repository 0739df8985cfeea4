"""The words of a command line, with other servers' flags translated, ignored or refused.

Pure: words in, words out. FlagParser calls it before argparse sees the line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from atom.entrypoints.flags.flag_row import ANY_VALUE, FlagRow, FlagVerdict
from atom.entrypoints.flags.other_flags import ROW_OF
from atom.sizing.options.flag_values import is_flag

_SNAKE_FLAG = re.compile(r"(--[a-z0-9_-]*_[a-z0-9_-]*)([=.].*)?", re.DOTALL)
_LEVEL = re.compile(r"-O=?\w+")  # vLLM's -O3


@dataclass(frozen=True, slots=True)
class FlagNote:
    """Hold a flag as it was written, and the message about it."""

    flag: str
    note: str


@dataclass(frozen=True, slots=True)
class ReadWords:
    """A command line after other servers' flags were translated. words: the line in our own flags.
    unneeded: taken, and without effect. refused: with the remedy of each."""

    words: tuple[str, ...]
    unneeded: tuple[FlagNote, ...]
    refused: tuple[FlagNote, ...]


def kebab(word: str) -> str:
    """Write a flag's name with dashes: --max_model_len=2_0 as --max-model-len=2_0."""
    match = _SNAKE_FLAG.fullmatch(word)
    return word if match is None else match[1].replace("_", "-") + (match[2] or "")


def read_words(line: Sequence[str], rows: Mapping[str, FlagRow] = ROW_OF) -> ReadWords:
    """Translate a line. rows: the table of other servers' flags, by flag."""
    words: list[str] = []
    unneeded: list[FlagNote] = []
    refused: list[FlagNote] = []
    rest = _Rest(line)
    for word in rest:
        name, equals, value = word.partition("=")
        row = _row_of(name, rows)
        if row is None:
            words.append(word)
        elif row.verdict is FlagVerdict.SAME:
            words.append(row.note + equals + value)
        elif row.verdict is FlagVerdict.REFUSED:
            rest.skip_values()
            refused.append(FlagNote(name, row.note))
        elif not row.values or _changes_nothing(
            row, given := value if equals else rest.next_value()
        ):
            unneeded.append(FlagNote(name, row.note))
        else:
            shown = f"{row.note}; leave it out" if given else f"{row.note}; it needs a value"
            refused.append(FlagNote(f"{name} {given}".rstrip(), shown))
    return ReadWords(tuple(words), tuple(unneeded), tuple(refused))


def _changes_nothing(row: FlagRow, value: str) -> bool:
    return value in row.values or (ANY_VALUE in row.values and value != "")


def _row_of(name: str, rows: Mapping[str, FlagRow]) -> FlagRow | None:
    if not name.startswith("-"):
        return None
    if _LEVEL.fullmatch(name):
        name = "-O"
    name = name.partition(".")[0] if name.startswith("--") else name
    row = rows.get(name)
    if row is None and name.startswith("--no-"):
        turned = rows.get(f"--{name.removeprefix('--no-')}")
        row = None if turned is None else _other_side(name, turned)
    return row


def _other_side(name: str, row: FlagRow) -> FlagRow | None:
    """Return the verdict on a switch's --no-… form: unneeded if the switch is refused, refused if
    the switch is always on."""
    if row.verdict is FlagVerdict.REFUSED:
        return FlagRow((name,), FlagVerdict.UNNEEDED, f"without it: {row.note}")
    if row.verdict is FlagVerdict.UNNEEDED and not row.values:
        return FlagRow((name,), FlagVerdict.REFUSED, f"{row.note}; leave it out")
    return None


class _Rest:
    """A line's words from the first to the last."""

    def __init__(self, line: Sequence[str]) -> None:
        self._line = list(line)
        self._next = 0

    def __iter__(self) -> Iterator[str]:
        while self._next < len(self._line):
            self._next += 1
            yield self._line[self._next - 1]

    def next_value(self) -> str:
        """Return the value that follows a flag; empty where another flag does."""
        if self._next < len(self._line) and _is_value(self._line[self._next]):
            self._next += 1
            return self._line[self._next - 1]
        return ""

    def skip_values(self) -> None:
        while self.next_value():
            pass


def _is_value(word: str) -> bool:
    return bool(word) and not is_flag(word)
