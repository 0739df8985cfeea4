"""Bound the result of a chat template's methods, filters and operators before it is computed.

Each rule estimates from above the size of one operation's result, or the time that the operation
takes, from its arguments. Raises `BoundsError`. This module knows no Jinja except the names of its
filters.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from typing import Any

from atom.bounded_input.template_work import (
    MOST_BITS,
    MOST_ITEMS,
    MOST_NUMBER,
    MOST_SLOW,
    bound,
    refuse,
)

_NUMBER = re.compile(r"\d+")
_WHITE = " \t\n\r\v\f"
_LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
_TO_BYTES = frozenset({"encode", "to_bytes"})
_WIDTHS = frozenset({"center", "ljust", "rjust", "zfill"})
_FORMATS = frozenset({"format", "format_map"})
_SPLITS = frozenset({"split", "rsplit", "splitlines"})
# Filters that Python code goes through a text for, some of them by regular expressions.
_SLOW_FILTERS = frozenset(
    {
        "title", "wordwrap", "urlize", "striptags", "wordcount", "pprint", "xmlattr", "urlencode",
        "truncate", "filesizeformat",
    }
)  # fmt: skip
_NUMBERED_FILTERS = frozenset(
    {"center", "indent", "batch", "slice", "wordwrap", "round", "truncate"}
)
# Filters that look at their arguments anew for each item.
_FILTERS_OF_ITEMS = frozenset(
    {
        "groupby", "sort", "unique", "min", "max", "dictsort", "sum", "map", "select", "selectattr",
        "reject", "rejectattr", "batch", "slice",
    }
)  # fmt: skip
_MOST_PRECISION = 1000
_SHORT = 64  # names of attributes and filters


def bound_call(name: str, owner: Any, args: Sequence[Any]) -> None:
    """Bound a method of a value."""
    if name in _TO_BYTES or isinstance(owner, (bytes, bytearray)):
        refuse("it makes bytes, of which no prompt is made")
    if not isinstance(owner, str):
        _bound_numbers(args)
        return
    texts = [each for each in args if isinstance(each, str)]
    if name in _WIDTHS:
        _bound_numbers(args)
    elif name == "expandtabs":
        _bound_numbers(args)
        widest = max((each for each in args if isinstance(each, int)), default=8)
        bound(len(owner) + owner.count("\t") * max(widest, 0))
    elif name == "replace" and len(texts) >= 2:
        _bound_replacement(owner, texts[0], texts[1])
    elif name in _FORMATS:
        bound_fields(owner, args)
    elif name == "join" and args:
        _bound_joined(owner, args[0])
    elif name == "translate" and args and isinstance(args[0], dict):
        longest = max((len(each) for each in args[0].values() if isinstance(each, str)), default=1)
        bound(len(owner) * max(longest, 1))
    elif name in _SPLITS:
        _bound_pieces(name, owner, texts)


def bound_filter(name: str, size: int, values: Sequence[Any]) -> None:
    """Bound a filter. size: of all that it is given; values: these, the filtered one first."""
    if name in _SLOW_FILTERS and size > MOST_SLOW:
        refuse(f"its filter {name} would go through {size:,} characters; at most {MOST_SLOW:,}")
    texts = [each for each in values if isinstance(each, str)]
    first = values[0] if values else None
    if name in _NUMBERED_FILTERS:
        _bound_numbers(values[1:])
    if name in _FILTERS_OF_ITEMS:
        count = len(first) if isinstance(first, (str, list, tuple, dict)) else MOST_ITEMS
        given = sum(len(each) for each in values[1:] if isinstance(each, str))
        bound(count * given if given > _SHORT else 0)
    if name == "round":
        for each in values[1:]:
            if isinstance(each, int) and abs(each) > _MOST_PRECISION:
                refuse(f"it rounds to {each} digits")
    elif name == "indent" and isinstance(first, str):
        widths = [*map(len, texts[1:]), *_ints(values)]
        bound(len(first) + (first.count("\n") + 1) * max(widths, default=4))
    elif name == "wordwrap" and len(texts) > 1:
        bound(len(texts[0]) * max(1, len(texts[1])))
    elif name == "replace" and len(values) >= 3:
        # The filter converts any value to a text; its arguments may be given by name.
        text, *others = map(str, values[:3])
        for old, new in itertools.permutations(others):
            _bound_replacement(text, old, new)
    elif name == "format" and values:
        bound_fields(str(first), values[1:])
    elif name == "join" and len(texts) >= 1:
        _bound_joined(texts[-1], first)
    elif name in ("list", "reverse", "unique", "sort") and isinstance(first, str):
        _bound_items(len(first))


def bound_times(sequence: str | Sequence[Any], count: int) -> None:
    """Bound a sequence that is repeated."""
    size = len(sequence) * max(count, 0)
    bound(size)
    if not isinstance(sequence, str):
        _bound_items(size)


def bound_power(left: Any, right: float) -> None:
    """Bound a power."""
    bits = left.bit_length() if isinstance(left, int) else 1
    if abs(right) > 1000 or max(bits, 1) * abs(right) > MOST_BITS:
        refuse(f"it takes a number to the power of {right}")


def bound_fields(pattern: str, values: Iterable[Any]) -> None:
    """Bound a formatted text. The pattern or the values give the widths of its fields."""
    written = [
        int(digits) if len(digits) < 8 else MOST_NUMBER + 1 for digits in _NUMBER.findall(pattern)
    ]
    if any(width > MOST_NUMBER for width in written):
        refuse(f"it formats a field of more than {MOST_NUMBER:,} characters")
    bound(len(pattern) + sum(written))
    fields = pattern.count("%") + pattern.count("{")
    if "*" in pattern or "{" in pattern:
        given = [abs(each) for each in values if isinstance(each, int)]
        _bound_numbers(given)
        if pattern.count("{") > 1 or "*" in pattern:
            nested = "*" in pattern or re.search(r"\{[^{}]*\{", pattern) is not None
            bound(fields * max(given, default=0) if nested else 0)
    sizes = [len(each) for each in values if isinstance(each, str)]
    bound(len(pattern) + fields * max(sizes, default=0))


def _bound_numbers(values: Iterable[Any]) -> None:
    for value in values:
        if isinstance(value, int) and abs(value) > MOST_NUMBER:
            refuse(f"it asks for a width or a count of {value}")


def _ints(values: Iterable[Any]) -> list[int]:
    return [abs(each) for each in values if isinstance(each, int)]


def _bound_replacement(text: str, old: str, new: str) -> None:
    bound(len(text) + text.count(old) * len(new))


def _bound_joined(separator: str, parts: Any) -> None:
    count = len(parts) if isinstance(parts, (str, list, tuple, dict)) else MOST_ITEMS
    bound(len(separator) * count if len(separator) > 1 else 0)


def _bound_pieces(name: str, text: str, separators: Sequence[str]) -> None:
    if separators and separators[0] and name != "splitlines":
        pieces = text.count(separators[0])
    else:
        ends = _LINE_ENDS if name == "splitlines" else _WHITE
        pieces = sum(map(text.count, ends))
    _bound_items(pieces)


def _bound_items(count: int) -> None:
    if count > MOST_ITEMS:
        refuse(f"it makes a list of more than {MOST_ITEMS:,} items")
