"""The numbers of a case as languages of digits: bounds of any size, divisors, excluded values.

Whole numbers are written without fraction or exponent. A fraction near a bound has so few digits
that a validator which reads it as a double still finds it on the right side. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from math import ceil, floor, gcd, lcm

from atom.structured_outputs import exact_json
from atom.structured_outputs.json_schema.cases import Case, Number, Numbers
from atom.structured_outputs.json_schema.digits import (
    at_least,
    at_most,
    spellings,
    whole_range,
)
from atom.structured_outputs.json_schema.keywords import UnkeptError
from atom.structured_outputs.json_schema.texts import TextLanguage
from atom.structured_outputs.json_schema.whole_range import WholeRange
from atom.structured_outputs.regex.automaton import (
    Automaton,
    Condition,
    Divisible,
    Expression,
    build_automaton,
)
from atom.structured_outputs.regex.search import matched
from atom.structured_outputs.regex.syntax import Node, RegexError, choice, literal, sequence

_DOUBLE_DIGITS = 15  # a double distinguishes all decimals of so many digits
_MAX_LISTED = 1000
_MAX_DIVISOR = 1000
_TENS = frozenset(10**power for power in range(19))
_HALF_UNIT = Fraction(1, 2**54)
_ANY_NUMBER = r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d{1,2})?"


def number_languages(case: Case) -> list[TextLanguage]:
    """Return languages whose union is the numbers of the case. Raises `SchemaError`."""
    if case.numbers.is_empty:
        return []
    try:
        found = list(_languages(case))
    except RegexError:
        raise UnkeptError(
            "multipleOf", "is too large to be kept beside these bounds; leave one of them out"
        ) from None
    return [language for language in found if not language.is_empty]


def _languages(case: Case) -> Iterator[TextLanguage]:
    numbers = case.numbers
    excluded = [
        value for value in case.excluded if exact_json.kind(value) in ("integer", "fraction")
    ]
    divisor = _divisor(numbers)
    free = numbers == Numbers() and not excluded
    if free and {"integer", "fraction"} <= case.types:
        yield TextLanguage(node=matched(_ANY_NUMBER))
        return
    if "integer" in case.types:
        yield _whole(numbers, divisor, excluded)
    if "fraction" in case.types and (divisor is None or divisor.denominator > 1):
        alone = "integer" not in case.types
        yield from _fractions(numbers, divisor, excluded, alone=alone)


def _divisor(numbers: Numbers) -> Fraction | None:
    """Return the least common multiple of all divisors; None if there are none."""
    if not numbers.divisors:
        return None
    found = [Fraction(one) for one in numbers.divisors]
    return Fraction(
        lcm(*(one.numerator for one in found)), gcd(*(one.denominator for one in found))
    )


def _whole(numbers: Numbers, divisor: Fraction | None, excluded: list[Number]) -> TextLanguage:
    low, high = whole_bounds(numbers)
    if low is not None and high is not None and low > high:
        return TextLanguage(automaton=Automaton((), frozenset()))
    step = 1 if divisor is None else divisor.numerator
    if step in _TENS and not excluded:
        _check_binary(numbers)
        return TextLanguage(node=_tens(low, high, step))
    conditions: list[Condition] = [WholeRange(low, high)]
    if step > 1:
        _check_binary(numbers)
        if low is not None and high is not None and high // step - low // step <= _MAX_LISTED:
            first = -(-low // step) * step
            multiples = (literal(str(one)) for one in range(first, high + 1, step))
            conditions = [Expression(choice(*multiples))]
        elif step > _MAX_DIVISOR:
            raise _not_kept(step)
        else:
            conditions.append(Divisible(step))
    if excluded:
        conditions.append(Expression(choice(*map(spellings, excluded)), wanted=False))
    return TextLanguage(automaton=build_automaton(conditions))


def _tens(low: int | None, high: int | None, step: int) -> Node:
    """Return multiples of a power of ten: a number, followed by its zeros."""
    if step == 1:
        return whole_range(low, high)
    least = None if low is None else -(-low // step)
    most = None if high is None else high // step
    zeros = literal(str(step)[1:])
    options = []
    if least is None or least < 0:
        options.append(sequence(whole_range(least, min(-1, -1 if most is None else most)), zeros))
    if (least is None or least <= 0) and (most is None or most >= 0):
        options.append(literal("0"))
    if most is None or most > 0:
        options.append(sequence(whole_range(max(1, least or 1), most), zeros))
    return choice(*options)


def whole_bounds(numbers: Numbers) -> tuple[int | None, int | None]:
    """Return the least and the largest whole number within the bounds."""
    low = None if numbers.low is None else ceil(numbers.low)
    high = None if numbers.high is None else floor(numbers.high)
    if low is not None and low == numbers.low and numbers.low_open:
        low += 1
    if high is not None and high == numbers.high and numbers.high_open:
        high -= 1
    return low, high


def _check_binary(numbers: Numbers) -> None:
    """Refuse a divisor that is too far from its double, since validators divide doubles."""
    for one in numbers.divisors:
        if isinstance(one, Decimal) and abs(Fraction(float(one)) / Fraction(one) - 1) > _HALF_UNIT:
            raise _not_kept(one)


def _not_kept(divisor: Number) -> UnkeptError:
    return UnkeptError(
        "multipleOf",
        f"{divisor} is not kept by this server: validators divide doubles, and only whole numbers "
        f"up to {_MAX_DIVISOR} and sums of halves are exact; use an integer of a smaller unit, or "
        f"leave it out",
    )


def _fractions(
    numbers: Numbers, divisor: Fraction | None, excluded: list[Number], *, alone: bool
) -> Iterator[TextLanguage]:
    """Yield numbers with a fraction; alone: without the whole ones."""
    places = _places(numbers)
    if divisor is not None:
        power = divisor.denominator.bit_length() - 1
        if divisor.denominator != 1 << power or power > 6 or len(numbers.divisors) > 1:
            yield _listed(numbers, divisor)
            return
        places = power
    if places < 1 or (alone and places > 6):
        places = 6 if alone and places > 0 else places
    if places < 1:
        return
    digits = rf"\d{{{places}}}" if divisor is not None else rf"\d{{1,{places}}}"
    if alone:
        digits = rf"\d{{0,{places - 1}}}[1-9]"
    whole = r"\d{0,8}" if alone or divisor is not None else r"\d*"
    conditions: list[Condition] = [Expression(matched(rf"-?(?:0|[1-9]{whole})\.{digits}"))]
    if divisor is not None:
        step = divisor * 10**places
        if step > _MAX_DIVISOR:
            raise _not_kept(numbers.divisors[0])
        conditions.append(Divisible(int(step)))
    if numbers.low is not None:
        conditions.append(Expression(at_least(numbers.low, strict=numbers.low_open)))
    if numbers.high is not None:
        conditions.append(Expression(at_most(numbers.high, strict=numbers.high_open)))
    if excluded:
        conditions.append(Expression(choice(*map(spellings, excluded)), wanted=False))
    yield TextLanguage(automaton=build_automaton(conditions))


def _places(numbers: Numbers) -> int:
    """Return the most digits of a fraction within these bounds."""
    bounds = [bound for bound in (numbers.low, numbers.high) if bound is not None]
    return _DOUBLE_DIGITS - max((len(str(abs(int(bound)))) for bound in bounds), default=1)


def _listed(numbers: Numbers, divisor: Fraction) -> TextLanguage:
    """Return every multiple in a short range, except those that validators' arithmetic does not
    find."""
    if numbers.low is None or numbers.high is None:
        raise _not_kept(numbers.divisors[0])
    first, last = ceil(Fraction(numbers.low) / divisor), floor(Fraction(numbers.high) / divisor)
    if last - first > _MAX_LISTED:
        raise _not_kept(numbers.divisors[0])
    nodes: list[Node] = []
    for count in range(first, last + 1):
        value = _decimal(count * divisor)
        if value is None:
            raise _not_kept(numbers.divisors[0])
        read = value if isinstance(value, int) else Decimal(float(value))  # by a validator
        if is_multiple(value, numbers) and not outside(read, numbers):
            nodes.append(literal(exact_json.write(value)))
    return TextLanguage(node=choice(*nodes))


def _decimal(value: Fraction) -> Number | None:
    if value.denominator == 1:
        return int(value)
    for places in range(1, 31):
        if 10**places % value.denominator == 0:
            return Decimal(f"{int(value * 10**places)}E-{places}")  # exact in any context
    return None


def is_multiple(value: Number, numbers: Numbers) -> bool:
    """Return whether exact arithmetic and that of doubles both find it a multiple of each
    divisor."""
    for one in numbers.divisors:
        if Fraction(value) % Fraction(one):
            return False
        if isinstance(one, Decimal):
            quotient = float(value) / float(one)
            if quotient != int(quotient):
                return False
    return True


def outside(value: Number, numbers: Numbers) -> bool:
    """Return whether a bound leaves the number out."""
    low, high = numbers.low, numbers.high
    if low is not None and (value < low or (numbers.low_open and value == low)):
        return True
    return high is not None and (value > high or (numbers.high_open and value == high))
