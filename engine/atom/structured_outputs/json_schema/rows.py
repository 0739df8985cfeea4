"""Rows: parts in a fixed order, some of them optional, with commas between those present.

Members of an object and items of a set are such rows. The present parts are counted only if their
number matters. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from atom.structured_outputs.grammar_writer import GrammarWriter, counted
from atom.structured_outputs.json_schema.keywords import UnkeptError

_MAX_STATES = 4000


@dataclass(frozen=True, slots=True)
class Part:
    body: str
    required: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """A row of low to high parts in all; more: further parts after the named ones, any number of
    times; once: they count as one, since all of them may be the same."""

    parts: Sequence[Part]
    more: str | None
    low: int
    high: int | None
    once: bool = False

    @property
    def counts(self) -> bool:
        required = sum(part.required for part in self.parts)
        most = None if self.more is not None else len(self.parts)
        binds = self.high is not None and (most is None or self.high < most)
        return binds or self.low > required


def write_row(row: Row, comma: str, writer: GrammarWriter) -> str:
    """Write a row as an element of the grammar. Raises `SchemaError` if it would be too large."""
    return _Row(row, comma, writer).element()


class _Row:
    def __init__(self, row: Row, comma: str, writer: GrammarWriter) -> None:
        self._row, self._comma, self._writer = row, comma, writer
        # Where counts do not matter, all that is asked is whether anything came before.
        self._cap = 1
        if row.counts:
            self._cap = row.high if row.high is not None else max(row.low, 1)
            self._cap = min(self._cap, len(row.parts) + max(row.low, 1))
        if len(row.parts) * self._cap > _MAX_STATES:
            raise UnkeptError(
                "minProperties or maxProperties",
                f"counts members of which {len(row.parts)} are named; leave it out, or name fewer",
            )
        self._required = [0]  # parts before each place that must have come
        for part in row.parts:
            self._required.append(self._required[-1] + part.required)

    def element(self) -> str:
        size = len(self._row.parts)
        behind = {count: self._more(count) for count in self._counts_before(size)}
        for at in reversed(range(size)):
            behind = {count: self._from(at, count, behind) for count in self._counts_before(at)}
        found = behind[0]
        assert found is not None
        return found

    def _counts_before(self, at: int) -> range:
        """Return how many may have come before a part."""
        return range(min(self._required[at], self._cap), min(at, self._cap) + 1)

    def _from(self, at: int, count: int, behind: dict[int, str | None]) -> str | None:
        """Write the row from a part on, after `count` others; None if no row fits."""
        part, reached = self._row.parts[at], min(count + 1, self._cap)
        most = self._row.high
        taken = None
        if not (self._row.counts and most is not None and count + 1 > most):
            rest = behind[reached]
            if rest is not None:
                comma = f"{self._comma} " if count else ""
                taken = f"{comma}{part.body}" + ("" if rest == '""' else f" {rest}")
        skipped = None if part.required else behind.get(count)
        options = [found for found in (taken, skipped) if found is not None]
        if not options:
            return None
        if len(options) == 1:
            return options[0]
        return self._writer.rule("r", " | ".join(options))

    def _more(self, count: int) -> str | None:
        low = max(0, self._row.low - count) if self._row.counts else 0
        high = self._row.high
        most = None if high is None or not self._row.counts else high - count
        if (most is not None and most < low) or (self._row.once and low > 1):
            return None
        if self._row.more is None or most == 0:
            return None if low else '""'
        following = f"({self._comma} {self._row.more})"
        if count:
            return counted(following, low, most)
        first = counted(following, max(low - 1, 0), None if most is None else most - 1)
        body = f"{self._row.more} {first}"
        return body if low else f"({body})?"
