"""The only reader of untrusted JSON: bounded in bytes, values and depth.

Python's parser answers a deep text with a RecursionError, which no caller of a parser expects, and
a short text of millions of empty lists with seconds of work. So depth and values are counted before
the text is parsed, in time that is linear in the bytes. Callers name the file and the remedy; the
error here states only the fault of the text.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

_SEPARATORS = (b'"', b",", b"[", b"{")
_NO_BRACKETS = bytes(set(range(256)).difference(b"[]{}"))
_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class BoundedJsonError(ValueError):
    """The text is not JSON within the bounds; the message gives the reason and follows a file's
    name."""


@dataclass(frozen=True, slots=True)
class JsonBounds:
    """Limits of a JSON text. most_bytes: of the text in UTF-8; most_values: keys, texts, items and
    brackets, each counted by itself; most_depth: lists and objects within each other."""

    most_bytes: int
    most_values: int
    most_depth: int = 64


# A configuration: config.json, generation_config.json, adapter_config.json and their like.
SETTINGS = JsonBounds(most_bytes=16 << 20, most_values=1 << 20)
# A list of all tensors or tokens; the largest published ones have about 10^6 values.
LISTING = JsonBounds(most_bytes=256 << 20, most_values=1 << 23)


def parse_json(text: bytes | str, bounds: JsonBounds, *, finite: bool = False) -> Any:
    """Parse a JSON text in UTF-8. finite: refuse NaN, Infinity and numbers beyond floats, which
    JSON does not have and Python's parser takes. Raises `BoundedJsonError`."""
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    check_json_size(data, bounds)
    hooks: dict[str, Any] = {"parse_constant": _no_number, "parse_float": _finite} if finite else {}
    try:
        return json.loads(data.removeprefix(_BYTE_ORDER_MARK).decode("utf-8"), **hooks)
    except BoundedJsonError:
        raise
    except (ValueError, RecursionError) as error:
        raise BoundedJsonError(str(error)) from None


def read_json_file(file: Path, bounds: JsonBounds = SETTINGS) -> Any:
    """Parse a JSON file, reading at most one byte more than the bounds allow. Raises
    `BoundedJsonError` and OSError."""
    with file.open("rb") as opened:
        return parse_json(opened.read(bounds.most_bytes + 1), bounds)


def check_json_size(data: bytes, bounds: JsonBounds) -> None:
    """Raise `BoundedJsonError` for a text that no parser should begin with."""
    if len(data) > bounds.most_bytes:
        raise BoundedJsonError(f"more than {bounds.most_bytes} bytes of JSON")
    if count_values(data, bounds.most_values) > bounds.most_values:
        raise BoundedJsonError(f"more than {bounds.most_values} values (keys, texts, items)")
    if _depth(data, bounds.most_depth) > bounds.most_depth:
        raise BoundedJsonError(f"lists and objects nested deeper than {bounds.most_depth}")


def count_values(data: bytes | bytearray, enough: int) -> int:
    """Count at least as many values as a JSON text has, and at most its texts, fields and items,
    each counted by itself. If there are far more texts than `enough`, count the texts alone."""
    signs = sum(map(data.count, _SEPARATORS))
    if signs <= enough:  # also with those inside of texts
        return signs
    plain = _without_escapes(data)
    quotes = plain.count(b'"')
    if quotes > 2 * enough:
        return quotes // 2
    outside = _outside_texts(plain)
    return quotes // 2 + sum(map(outside.count, (b",", b"[", b"{")))


def _depth(data: bytes, enough: int) -> int:
    """Count the lists and objects around the innermost value."""
    if data.count(b"[") + data.count(b"{") <= enough:
        return 0
    brackets = _outside_texts(_without_escapes(data)).translate(None, _NO_BRACKETS)
    return max(accumulate(map(_STEPS.__getitem__, brackets)), default=0)


def _without_escapes(data: bytes | bytearray) -> bytes:
    """Leave out escaped backslashes first, so that the ones left escape the next sign."""
    return bytes(data).replace(rb"\\", b"").replace(rb"\"", b"")


def _outside_texts(plain: bytes) -> bytes:
    return b"".join(plain.split(b'"')[::2])


def _no_number(name: str) -> float:
    raise BoundedJsonError(f"{name} is no JSON number")


def _finite(digits: str) -> float:
    number = float(digits)
    return number if math.isfinite(number) else _no_number(digits[:32])
