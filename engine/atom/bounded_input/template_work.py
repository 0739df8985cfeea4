"""TemplateWork: limit the work of one render of a chat template, also within an operation.

Counting the steps of loops does not bound the size of one operation: a number squared forty times,
a list that holds itself twice, sixty times over, or a title of ten million characters. So each
text, list and number that a template makes has a bounded weight, and the sizes that operations read
and make are added up. This module knows no Jinja. Used by template_sandbox.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

MOST_STEPS = 2_000_000  # turns of loops and calls of macros
MOST_CHARACTERS = 1 << 24  # of a text; of a list or dict, with all that is in it
MOST_ITEMS = 1 << 17  # of a list
MOST_SLOW = 1 << 17  # characters that Python code processes one by one
MOST_WORK = 1 << 27  # characters and items that operations read and make
MOST_BITS = 4096  # of a number
MOST_NUMBER = 100_000  # that a width, a count or an exponent may be
DEADLINE_SECONDS = 10.0
_CHECK_EVERY = 32  # steps between looks at the clock
_LOOK_WORK = 1 << 20  # or so much work
_ITEM_WORK = 8
_REMEMBERED = 16  # the weight of a list from which on it is not weighed again
_Container = (list, tuple, dict, set, frozenset)


class BoundsError(Exception):
    """A template does more than any conversation needs."""


class TemplateWork:
    """The work and the deadline of one render. clock: returns seconds."""

    __slots__ = ("_clock", "_deadline", "_look_at", "_spent", "_steps", "_weights")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._deadline = clock() + DEADLINE_SECONDS
        self._steps = 0
        self._spent = 0
        self._look_at = _LOOK_WORK
        # By identity; the object is kept, so that no other one gets its number.
        self._weights: dict[int, tuple[object, int]] = {}

    def step(self) -> None:
        """Count a turn of a loop, or a macro."""
        self._steps += 1
        if self._steps > MOST_STEPS:
            refuse(f"it takes more than {MOST_STEPS:,} steps")
        if self._steps % _CHECK_EVERY == 0:
            self._look()

    def spend(self, work: int) -> None:
        """Count the work of an operation, before it reads its inputs or after it made its
        result."""
        self._spent += work
        if self._spent > MOST_WORK:
            refuse("its operations read and make too much")
        if self._spent >= self._look_at:
            self._look_at = self._spent + _LOOK_WORK
            self._look()

    def take(self, value: Any) -> Any:
        """Count a value that an operation reads or has made, within the bounds of its kind."""
        if isinstance(value, str):
            bound(len(value))
            self.spend(len(value))
        elif isinstance(value, int):
            if value.bit_length() > MOST_BITS:
                refuse(f"it makes a number of more than {MOST_BITS} bits")
        elif isinstance(value, _Container):
            if len(value) > MOST_ITEMS:
                refuse(f"it makes a list of more than {MOST_ITEMS:,} items")
            bound(self._weight(value))
            self.spend(_ITEM_WORK * (1 + len(value)))
        elif isinstance(value, (bytes, bytearray)):
            refuse("it makes bytes, of which no prompt is made")
        return value

    def read(self, values: Iterable[Any]) -> int:
        """Count and return the weight of an operation's inputs: texts, and lists with all their
        items."""
        weight = sum(self._weight(value) for value in values)
        self.spend(weight)
        return weight

    def _weight(self, value: Any) -> int:
        if isinstance(value, str):
            return len(value)
        if not isinstance(value, _Container):
            return 1
        known = self._weights.get(id(value))
        if known is not None:
            return known[1]
        parts: Iterable[Any] = value
        if isinstance(value, dict):
            parts = itertools.chain(value.keys(), value.values())
        total = 1
        try:
            for part in parts:
                total += self._weight(part)
                bound(total)
        except RecursionError:
            refuse("it makes lists within lists without end")
        self.spend(len(value))
        if total >= _REMEMBERED:
            self._weights[id(value)] = value, total
        return total

    def _look(self) -> None:
        if self._clock() > self._deadline:
            refuse(f"it takes more than {DEADLINE_SECONDS:g} seconds")


def refuse(reason: str) -> NoReturn:
    raise BoundsError(reason)


def bound(size: int) -> None:
    if size > MOST_CHARACTERS:
        refuse(f"it makes more than {MOST_CHARACTERS:,} characters or items")
