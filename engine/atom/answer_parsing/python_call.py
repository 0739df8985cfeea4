"""The arguments of a call in Python's notation, as models write it; it accepts more than Python.

    city="Paris", days=3        strings may hold raw line breaks, and quotes that end nothing
    from=1, class="x"           reserved words are names
    {"a", "b"}, (1, 2)          sets and tuples are lists; true and null are words, too
    weather("Paris")            values without names are the tool's properties, in their order

All other syntax (names, calls, operators, f-strings with fields) is refused: no call is made up
from it. Pure; reads each character a bounded number of times.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from typing import Any

from atom.answer_parsing.argument_types import argument_types
from atom.answer_parsing.call_policy import properties_of
from atom.answer_parsing.json_words import json_word

_MOST_DEPTH = 64
_MOST_AHEAD = 64  # characters examined after a quote
_BLANKS = re.compile(r"(?:[ \t\r\n\f\\]|#[^\n]*)*")
_KEYWORD = re.compile(r"""(\*\*)|(?:([^\W\d]\w*)|"([\w-]+)"|'([\w-]+)')[ \t\r\n]*[=:](?!=)""")
_PREFIX = re.compile(r"([rRbBuUfF]{0,2})(\"\"\"|'''|\"|')")
_NUMBER = re.compile(r"[+-]?[0-9.][0-9A-Za-z_.]*(?:(?<=[eE])[+-][0-9]+)?")
_NAME = re.compile(r"[^\W\d]\w*")
_WORDS = {"True": True, "False": False, "None": None, "true": True, "false": False, "null": None}
_BEHIND_STRING = ",)]}:=+#\"'\\"
_FIELD = re.compile(r"\{\{|\}\}|[{}]")
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_ESCAPES = "\\'\"abfnrtvxuUN01234567"
_RAW = str.maketrans({"\n": "\\n", "\r": "\\r", "\x00": "\\x00"})
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_KINDS: dict[type, tuple[str, ...]] = {
    str: ("string",), bool: ("boolean",), int: ("integer", "number"), float: ("number",),
    dict: ("object",), list: ("array",), type(None): ("null",),
}  # fmt: skip


class UnreadableError(ValueError):
    """The text is no call with literals."""


def end_of_string(text: str, at: int, quote: str, *, whole: bool) -> tuple[int, bool]:
    """Find the end of a string from a position inside it: the position after its closing quote and
    True; or the position from which to continue with more text, and False. whole: no more text
    comes. A quote ends a string only if text that may follow a string follows it."""
    while True:
        place, escape = text.find(quote, at), text.find("\\", at)
        if escape >= 0 and (escape < place or place < 0):
            if escape + 1 >= len(text):
                return escape, False
            at = escape + 2
            continue
        if place < 0:
            return max(at, len(text) - len(quote) + 1), False
        behind = place + len(quote)
        ahead = text[behind : behind + _MOST_AHEAD].lstrip(" \t\r\n")
        if not ahead and not whole and len(text) < behind + _MOST_AHEAD:
            return place, False
        if not ahead or ahead[0] in _BEHIND_STRING or len(quote) == 3:
            return behind, True
        at = place + 1


def python_arguments(written: str, parameters: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Parse the text between a call's brackets; return the arguments by name, or None if the text
    cannot be parsed. parameters: the tool's schema."""
    try:
        found = _Reader(written).arguments(parameters)
        json.dumps(found, allow_nan=False)
    except (ValueError, RecursionError):
        return None
    return found


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0

    def arguments(self, parameters: Mapping[str, Any] | None) -> dict[str, Any]:
        found: dict[str, Any] = {}
        bare: list[Any] = []
        while self._sign():
            keyword = _KEYWORD.match(self._text, self._at)
            if keyword is None:
                if found:
                    raise UnreadableError("a value without a name follows a named one")
                bare.append(self._value())
            else:
                self._at = keyword.end()
                value = self._value()
                if not keyword[1]:
                    found[keyword[2] or keyword[3] or keyword[4]] = value
                elif isinstance(value, dict):
                    found |= value
                else:
                    raise UnreadableError("only an object can be spread")
            self._separator("")
        return _in_order(bare, found, parameters) if bare else found

    def _sign(self) -> str:
        """Return the next character that is not a blank or comment; "" at the end."""
        match = _BLANKS.match(self._text, self._at)
        self._at = self._at if match is None else match.end()
        return self._text[self._at : self._at + 1]

    def _separator(self, end: str) -> None:
        """Pass a comma, unless the end follows."""
        sign = self._sign()
        if sign == ",":
            self._at += 1
        elif sign != end:
            raise UnreadableError("a comma is missing")

    def _value(self) -> Any:
        sign = self._sign()
        if sign and sign in _CLOSING:
            self._depth += 1
            if self._depth > _MOST_DEPTH:
                raise UnreadableError("too deep")
            self._at += 1
            found = self._braces() if sign == "{" else self._listed(_CLOSING[sign])
            self._depth -= 1
            return found
        if _PREFIX.match(self._text, self._at):
            return self._strings()
        number = _NUMBER.match(self._text, self._at)
        if number is not None:
            self._at = number.end()
            value = json.loads(json_word(number[0]))
            if not isinstance(value, int | float):
                raise UnreadableError("no number")
            return value
        name = _NAME.match(self._text, self._at)
        if name is None or name[0] not in _WORDS:
            raise UnreadableError("no literal")
        self._at = name.end()
        return _WORDS[name[0]]

    def _listed(self, end: str) -> Any:
        """Parse a list or a tuple; a single value in round brackets is that value."""
        values: list[Any] = []
        while self._sign() != end:
            values.append(self._value())
            alone = len(values) == 1 and end == ")" and self._sign() == ")"
            if alone:
                self._at += 1
                return values[0]
            self._separator(end)
        self._at += 1
        return values

    def _braces(self) -> Any:
        """Parse a dictionary, or a set as a list."""
        members: dict[str, Any] = {}
        values: list[Any] = []
        while self._sign() != "}":
            name = _NAME.match(self._text, self._at)
            bare = name is not None and name[0] not in _WORDS and not _PREFIX.match(
                self._text, self._at
            )  # fmt: skip
            if bare and name is not None:
                self._at, key = name.end(), name[0]
            else:
                key = self._value()
            if self._sign() == ":":
                self._at += 1
                members[_key(key)] = self._value()
            elif bare:
                raise UnreadableError("no literal")
            else:
                values.append(key)
            self._separator("}")
        self._at += 1
        if members and values:
            raise UnreadableError("neither a dictionary nor a set")
        return values or members

    def _strings(self) -> str:
        """Parse adjacent strings as one."""
        found: list[str] = []
        while (prefix := _PREFIX.match(self._text, self._at)) is not None:
            start, quote = prefix.end(), prefix[2]
            end, closed = end_of_string(self._text, start, quote, whole=True)
            if not closed:
                raise UnreadableError("a string without an end")
            found.append(_text(self._text[start : end - len(quote)], prefix[1].lower(), quote))
            self._at = end
            if self._sign() == "+":
                self._at += 1
                self._sign()
                if not _PREFIX.match(self._text, self._at):
                    raise UnreadableError("no string follows")
        return "".join(found)


def _key(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or value is None or not isinstance(value, int | float):
        raise UnreadableError("keys of objects are texts")
    return str(value)


def _text(body: str, prefix: str, quote: str) -> str:
    """Return the text of a string's body."""
    if "f" in prefix:
        if any(len(sign) == 1 for sign in _FIELD.findall(body)):
            raise UnreadableError("the fields of an f-string have no value")
        body = body.replace("{{", "{").replace("}}", "}")
    if "\\" not in body or "r" in prefix:
        return body
    written = _ESCAPED.sub(_known_escape, body).translate(_RAW)
    try:
        value: str = ast.literal_eval(f"{quote[0]}{written}{quote[0]}")
    except (ValueError, SyntaxError):  # quotes inside, or an escape that lacks its digits
        value = json.loads(f'"{_as_json(body)}"', strict=False)
    # Characters that JSON's escapes write as two.
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _known_escape(found: re.Match[str]) -> str:
    """Write an escape that Python does not know, such as JSON's of a slash, as one it does."""
    sign = found[1]
    if sign in _ESCAPES:
        return found[0]
    if sign == "\n":
        return ""
    return "/" if sign == "/" else "\\\\" + sign


def _as_json(body: str) -> str:
    """Convert a body's escapes to JSON's; any other backslash or quote becomes text."""

    def escape(found: re.Match[str]) -> str:
        sign = found[0]
        if sign == '"':
            return '\\"'
        if sign[1:] == "'":
            return "'"
        return sign if sign[1:] and sign[1] in '"\\/bfnrt' else "\\\\" + sign[1:]

    return re.sub(r'\\.?|"', escape, body, flags=re.DOTALL)


def _in_order(
    bare: list[Any], named: dict[str, Any], parameters: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Assign values without names to the tool's properties, in their order. Raises UnreadableError
    if they may belong to other properties."""
    keys = list(properties_of(parameters))
    first = argument_types(parameters, keys[0]) if keys else frozenset[str]()
    if len(bare) == 1 and isinstance(bare[0], dict) and "object" not in first:
        if set(bare[0]) <= set(keys):
            return bare[0] | named  # all arguments, as an object
        raise UnreadableError("the object has other keys")
    found: dict[str, Any] = {}
    for place, value in enumerate(bare):
        if place >= len(keys) or keys[place] in named:
            raise UnreadableError("no property is left for the value")
        types = argument_types(parameters, keys[place])
        if types and types.isdisjoint(_KINDS[type(value)]):
            raise UnreadableError("the value is of another type than the property")
        found[keys[place]] = value
    return found | named
