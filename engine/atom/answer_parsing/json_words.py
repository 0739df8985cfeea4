"""json_word: convert a word without quotes, in the place of a JSON value, to JSON.

True → true    None → null    NaN → null    007 → 7    .5 → 0.5    Paris → "Paris"
"""

from __future__ import annotations

import json
import math
import re

_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_WHOLE = re.compile(r"[+-]?[0-9](?:_?[0-9])*")
_OTHER_BASE = re.compile(r"[+-]?0(?:[xX][0-9A-Fa-f]+|[oO][0-7]+|[bB][01]+)")
_FLOAT = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_MOST_DIGITS = 300
# What JavaScript makes of values that JSON lacks.
_WORDS = {
    "true": "true", "false": "false", "null": "null", "none": "null", "nil": "null",
    "undefined": "null", "nan": "null", "infinity": "null", "+infinity": "null",
    "-infinity": "null", "inf": "null", "-inf": "null",
}  # fmt: skip


def json_word(word: str) -> str:
    """Convert a word to JSON: to a literal or a number if it is one in JSON, Python or JavaScript,
    else to a string."""
    word = word.strip()
    if _NUMBER.fullmatch(word):
        return word
    if word.lower() in _WORDS:
        return _WORDS[word.lower()]
    return _odd_number(word) or json.dumps(word, ensure_ascii=False)


def _odd_number(word: str) -> str:
    """Convert a number that is not in JSON's form; return "" if the word is not a number."""
    if len(word) > _MOST_DIGITS:
        return ""
    if _WHOLE.fullmatch(word):
        return str(int(word))
    if _OTHER_BASE.fullmatch(word):
        return str(int(word, 0))
    if _FLOAT.fullmatch(word):
        value = float(word)
        return json.dumps(value) if math.isfinite(value) else "null"
    return ""
