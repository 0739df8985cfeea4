"""Ranges of numbers as expressions over their digits: whole ones of any size, decimals. Pure."""

from __future__ import annotations

from decimal import Decimal

from atom.structured_outputs.json_schema.cases import Number
from atom.structured_outputs.regex.character_set import DIGITS, of_ranges
from atom.structured_outputs.regex.syntax import (
    EMPTY,
    NEVER,
    Characters,
    Node,
    choice,
    literal,
    repeat,
    sequence,
)

_DIGIT = Characters(DIGITS)
_MINUS = literal("-")
_POINT = literal(".")
_ANY_WHOLE = choice(
    literal("0"), sequence(Characters(of_ranges([(49, 57)])), repeat(_DIGIT, 0, None))
)
_SOME_DIGITS = repeat(_DIGIT, 1, None)


def whole_range(low: int | None, high: int | None) -> Node:
    """Return whole numbers from low to high; None: without bound. Zero has no sign."""
    options = []
    if low is None or low < 0:
        least = 1 if high is None or high >= 0 else -high
        options.append(sequence(_MINUS, _positive(least, None if low is None else -low)))
    if high is None or high >= 0:
        options.append(_positive(max(low or 0, 0), high))
    return choice(*options)


def _positive(low: int, high: int | None) -> Node:
    """Describe the numbers from low, 0 or more, to high."""
    digits = len(str(low))
    if high is None:
        longer = sequence(_digit(1, 9), repeat(_DIGIT, digits, None))
        return choice(_same_length(str(low), "9" * digits), longer)
    longest = len(str(high))
    if digits == longest:
        return _same_length(str(low), str(high))
    options = [_same_length(str(low), "9" * digits)]
    if longest - digits > 1:
        options.append(sequence(_digit(1, 9), repeat(_DIGIT, digits, longest - 2)))
    options.append(_same_length("1" + "0" * (longest - 1), str(high)))
    return choice(*options)


def _same_length(low: str, high: str) -> Node:
    """Return the digits between two texts of digits, all of one length."""
    common = 0
    while common < len(low) and low[common] == high[common]:
        common += 1
    if common == len(low):
        return literal(low)
    prefix, low, high = literal(low[:common]), low[common:], high[common:]
    first, last = int(low[0]), int(high[0])
    options = []
    if set(low[1:]) - {"0"}:
        options.append(sequence(literal(low[0]), _rising(low[1:])))
        first += 1
    if set(high[1:]) - {"9"}:
        last -= 1
    if first <= last:
        options.append(sequence(_digit(first, last), repeat(_DIGIT, len(low) - 1, len(low) - 1)))
    if set(high[1:]) - {"9"}:
        options.append(sequence(literal(high[0]), _falling(high[1:])))
    return sequence(prefix, choice(*options))


def _rising(low: str) -> Node:
    """Return the digits of that length, low or more."""
    options: list[Node] = [literal(low)]
    for at, digit in enumerate(low):
        if digit != "9":
            rest = len(low) - at - 1
            options.append(
                sequence(literal(low[:at]), _digit(int(digit) + 1, 9), repeat(_DIGIT, rest, rest))
            )
    return choice(*options)


def _falling(high: str) -> Node:
    """Return the digits of that length, high or less."""
    options: list[Node] = [literal(high)]
    for at, digit in enumerate(high):
        if digit != "0":
            rest = len(high) - at - 1
            options.append(
                sequence(literal(high[:at]), _digit(0, int(digit) - 1), repeat(_DIGIT, rest, rest))
            )
    return choice(*options)


def _digit(first: int, last: int) -> Node:
    return Characters(of_ranges([(48 + first, 48 + last)]))


def at_least(bound: Number, *, strict: bool) -> Node:
    """Return decimals with a fraction that are the bound or more; strict: not the bound itself."""
    if bound < 0:
        return choice(
            sequence(_MINUS, _magnitude_at_most(bound, strict)), sequence(_ANY_WHOLE, _fraction())
        )
    return _magnitude_at_least(bound, strict)


def at_most(bound: Number, *, strict: bool) -> Node:
    """Return decimals with a fraction that are the bound or less; strict: not the bound itself."""
    if bound < 0:
        return sequence(_MINUS, _magnitude_at_least(bound, strict))
    options: list[Node] = [_magnitude_at_most(bound, strict)]
    if bound > 0 or not strict:  # minus zero is zero
        options.append(sequence(_MINUS, _ANY_WHOLE, _fraction()))
    else:
        options.append(sequence(_MINUS, _magnitude_at_least(0, strict=True)))
    return choice(*options)


def _fraction() -> Node:
    return sequence(_POINT, _SOME_DIGITS)


def _split(bound: Number) -> tuple[int, str]:
    """Return the whole part and the digits after the point, of the number without its sign."""
    text = format(bound, "f") if isinstance(bound, Decimal) else str(bound)
    whole, _, fraction = text.lstrip("-").partition(".")
    return int(whole), fraction.rstrip("0")


def _magnitude_at_least(bound: Number, strict: bool) -> Node:
    whole, fraction = _split(bound)
    return choice(
        sequence(_positive(whole + 1, None), _fraction()),
        sequence(literal(str(whole)), _POINT, _fraction_at_least(fraction, strict)),
    )


def _magnitude_at_most(bound: Number, strict: bool) -> Node:
    whole, fraction = _split(bound)
    options = [sequence(literal(str(whole)), _POINT, _fraction_at_most(fraction, strict))]
    if whole > 0:
        options.append(sequence(_positive(0, whole - 1), _fraction()))
    return choice(*options)


def _fraction_at_least(bound: str, strict: bool) -> Node:
    tail = repeat(_DIGIT, 0, None)
    more = sequence(repeat(literal("0"), 0, None), _digit(1, 9), tail)
    options = [sequence(literal(bound), more if strict else tail)]
    for at, digit in enumerate(bound):
        if digit != "9":
            options.append(sequence(literal(bound[:at]), _digit(int(digit) + 1, 9), tail))
    return choice(*options)


def _fraction_at_most(bound: str, strict: bool) -> Node:
    tail = repeat(_DIGIT, 0, None)
    equal = NEVER if strict else sequence(literal(bound), repeat(literal("0"), 0, None))
    options = [equal]
    for at, digit in enumerate(bound):
        if at:  # it ends before the bound does
            options.append(literal(bound[:at]))
        if digit != "0":
            options.append(sequence(literal(bound[:at]), _digit(0, int(digit) - 1), tail))
    return choice(*options)


def spellings(value: Number) -> Node:
    """Describe every way to write a number without an exponent."""
    whole, fraction = _split(value)
    sign = _MINUS if value < 0 else repeat(_MINUS, 0, 1) if value == 0 else EMPTY
    zeros = repeat(literal("0"), 0, None)
    if fraction:
        return sequence(sign, literal(f"{whole}.{fraction}"), zeros)
    point = repeat(sequence(_POINT, literal("0"), zeros), 0, 1)
    return sequence(sign, literal(str(whole)), point)
