"""Kinds of values in a config.json: the type and range of each, and the words for them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

_MOST_ITEMS = 4096  # of a list, by default: one for each layer


class Kind(Protocol):
    """The type and range of a value."""

    @property
    def accepted(self) -> str:
        """Return the accepted values, in words."""
        ...

    def takes(self, value: object) -> bool:
        """Return whether the value is accepted."""
        ...


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number from `least` to `most`, which JSON tools may have written as 8.0."""

    least: int
    most: int

    @property
    def accepted(self) -> str:
        """Return the range in words."""
        return f"a whole number from {self.least} to {self.most}"

    def takes(self, value: object) -> bool:
        """Return whether the value is a whole number of the range."""
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return False
        return self.least <= value <= self.most and value == int(value)


@dataclass(frozen=True, slots=True)
class Number:
    """A finite number above `above`, or equal to it where `inclusive`, up to `most`."""

    above: float
    most: float
    inclusive: bool = False

    @property
    def accepted(self) -> str:
        """Return the range in words."""
        least = "from" if self.inclusive else "above"
        return f"a number {least} {self.above:g} up to {self.most:g}"

    def takes(self, value: object) -> bool:
        """Return whether the value is a number of the range."""
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return False
        if not math.isfinite(value):
            return False
        return self.above < value <= self.most or (self.inclusive and value == self.above)


@dataclass(frozen=True, slots=True)
class Flag:
    """Accepts true or false."""

    accepted: str = "true or false"

    def takes(self, value: object) -> bool:
        """Return whether the value is true or false."""
        return isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class Text:
    """A text."""

    accepted: str = "a text"

    def takes(self, value: object) -> bool:
        """Return whether the value is a text."""
        return isinstance(value, str)


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list of at most `most` values of one kind, or a single value where `alone`."""

    item: Kind
    most: int = _MOST_ITEMS
    alone: bool = False

    @property
    def accepted(self) -> str:
        """Return the items in words."""
        many = f"a list of up to {self.most} items, each {self.item.accepted}"
        return f"{self.item.accepted}, or {many}" if self.alone else many

    def takes(self, value: object) -> bool:
        """Return whether the value is such a list."""
        if self.alone and self.item.takes(value):
            return True
        if not isinstance(value, (list, tuple)) or len(value) > self.most:
            return False
        return all(self.item.takes(item) for item in value)


@dataclass(frozen=True, slots=True)
class Either:
    """A value of one of two kinds."""

    one: Kind
    other: Kind

    @property
    def accepted(self) -> str:
        """Describe both kinds in words."""
        return f"{self.one.accepted}, or {self.other.accepted}"

    def takes(self, value: object) -> bool:
        """Return whether either kind accepts the value."""
        return self.one.takes(value) or self.other.takes(value)


@dataclass(frozen=True, slots=True)
class Object:
    """An object, whose own keys are checked by their readers."""

    accepted: str = "an object"

    def takes(self, value: object) -> bool:
        """Return whether the value is an object."""
        return isinstance(value, Mapping)
