"""WholeRange: whole numbers between two bounds, read digit by digit; a condition for automata with
further conditions. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from functools import lru_cache

from atom.structured_outputs.regex.character_set import DIGITS, CharacterSet, of_text

_Read = tuple[bool, int, int, int]  # negative, digits, order to the low bound, and to the high one


@dataclass(frozen=True, slots=True)
class WholeRange:
    """Accepts whole numbers from low to high; None: without end. Zero has no sign, and no number a
    leading zero."""

    low: int | None
    high: int | None
    start: _Read = (False, 0, 0, 0)

    def sets(self) -> Iterable[CharacterSet]:
        yield of_text("-")
        yield from (of_text(digit) for digit in "0123456789")

    def step(self, state: _Read, code: int) -> Hashable:
        negative, count, *orders = state
        if code == ord("-"):
            return None if negative or count else (True, 0, 0, 0)
        if code not in DIGITS or (count == 1 and orders[0] == 2):
            return None
        digit = code - ord("0")
        if count == 0 and digit == 0:
            return None if negative else (False, 1, 2, 2)  # zero: it ends here
        longest = max(len(_digits(bound)) for bound in (self.low, self.high))
        compared = [
            self._order(bound, count, order, digit)
            for bound, order in zip((self.low, self.high), orders, strict=True)
        ]
        return (negative, min(count + 1, longest + 1), *compared)

    def _order(self, bound: int | None, count: int, order: int, digit: int) -> int:
        """Compare the digits read so far to as many of the bound's."""
        digits = _digits(bound)
        if order or count >= len(digits):
            return order
        wanted = int(digits[count])
        return (digit > wanted) - (digit < wanted)

    def accepts(self, state: _Read) -> bool:
        negative, count, low, high = state
        if count == 0:
            return False
        if low == 2:
            return (self.low is None or self.low <= 0) and (self.high is None or self.high >= 0)
        return (self.low is None or self._side(self.low, negative, count, low) >= 0) and (
            self.high is None or self._side(self.high, negative, count, high) <= 0
        )

    def _side(self, bound: int, negative: bool, count: int, order: int) -> int:
        """Return whether the number is below, at or above the bound: -1, 0 or 1."""
        if negative != (bound < 0) or bound == 0:
            return -1 if negative else 1
        longer = count - len(_digits(bound))
        magnitude = order if longer == 0 else longer
        return (magnitude < 0) - (magnitude > 0) if negative else (magnitude > 0) - (magnitude < 0)


@lru_cache(maxsize=64)
def _digits(bound: int | None) -> str:
    return "" if bound is None else str(abs(bound))
