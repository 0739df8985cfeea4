"""CharacterSet: which characters a place in a text may hold, as ranges of code points.

The universe is every character that a text can have: no surrogates. Sets whose meaning differs
between ECMA-262 and Python (digits, words, white space) come twice: what both agree on, and what
either takes. Pure; used by everything that speaks of regular expressions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache

_LAST = 0x10FFFF
_SURROGATES = (0xD800, 0xDFFF)


@dataclass(frozen=True, slots=True)
class CharacterSet:
    """A set of characters. ranges: (first, last) code points, sorted, neither overlapping nor
    touching."""

    ranges: tuple[tuple[int, int], ...]

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def __or__(self, other: CharacterSet) -> CharacterSet:
        return of_ranges((*self.ranges, *other.ranges))

    def __invert__(self) -> CharacterSet:
        gaps, start = [], 0
        for first, last in self.ranges:
            gaps.append((start, first - 1))
            start = last + 1
        return of_ranges((*gaps, (start, _LAST)))

    def __and__(self, other: CharacterSet) -> CharacterSet:
        found, mine, theirs = [], iter(self.ranges), iter(other.ranges)
        left, right = next(mine, None), next(theirs, None)
        while left and right:
            first, last = max(left[0], right[0]), min(left[1], right[1])
            if first <= last:
                found.append((first, last))
            if left[1] < right[1]:
                left = next(mine, None)
            else:
                right = next(theirs, None)
        return CharacterSet(tuple(found))

    def __sub__(self, other: CharacterSet) -> CharacterSet:
        return self & ~other

    def __contains__(self, code: int) -> bool:
        return any(first <= code <= last for first, last in self.ranges)

    @property
    def only(self) -> int | None:
        """Return the character of a set of one, or None."""
        if len(self.ranges) == 1 and self.ranges[0][0] == self.ranges[0][1]:
            return self.ranges[0][0]
        return None


def of_ranges(ranges: Iterable[tuple[int, int]]) -> CharacterSet:
    """Return the set of all characters in any of the ranges; surrogates are left out."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(_without_surrogates(ranges)):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return CharacterSet(tuple(merged))


def _without_surrogates(ranges: Iterable[tuple[int, int]]) -> Iterable[tuple[int, int]]:
    low, high = _SURROGATES
    for first, last in ranges:
        for part in ((first, min(last, low - 1)), (max(first, high + 1), last)):
            if part[0] <= part[1]:
                yield part


def of_text(characters: str) -> CharacterSet:
    """Return the set of a text's characters."""
    return of_ranges((ord(character), ord(character)) for character in characters)


def of_code(code: int) -> CharacterSet:
    """Return the set of one character."""
    return of_ranges([(code, code)])


@lru_cache(maxsize=8)
def _where(holds: Callable[[str], bool]) -> CharacterSet:
    low, high = _SURROGATES
    codes = (*range(low), *range(high + 1, _LAST + 1))
    return of_ranges((code, code) for code in codes if holds(chr(code)))


EVERY = of_ranges([(0, _LAST)])
NOTHING = of_ranges([])
DIGITS = of_text("0123456789")
RING_ENTRIES = of_ranges([(65, 90), (97, 122)])
WORD = DIGITS | RING_ENTRIES | of_text("_")
_BLANKS = "\t\n\v\f\r \u00a0\u1680\u2028\u2029\u202f\u205f\u3000"
SPACE = of_text(_BLANKS) | of_ranges([(0x2000, 0x200A)])
LINE_ENDS = of_text("\n\r\u2028\u2029")


def prepare() -> None:
    """Work out the sets of Unicode, for a process that forks."""
    for loose in (loose_digits, loose_word):
        loose()


def loose_digits() -> CharacterSet:
    """Return the characters that `\\d` matches in ECMA-262 or in Python."""
    return DIGITS | _where(str.isdecimal)


def loose_word() -> CharacterSet:
    """Return the characters that `\\w` matches in ECMA-262 or in Python."""
    return WORD | _where(str.isalnum)


def loose_space() -> CharacterSet:
    """Return the characters that `\\s` matches in ECMA-262 or in Python."""
    return SPACE | of_text("\x1c\x1d\x1e\x1f\x85\ufeff")
