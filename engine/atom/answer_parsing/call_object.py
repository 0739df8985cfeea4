"""A call as a JSON object, {"name": …, "arguments": {…}}, that arrives in pieces.

The name is known before the arguments are shown, and these then come as they are written, but for
what is no JSON (json_value.py). Families differ in their keys, and in how sure one may be that an
object is a call (`CallKeys`). What stands around the object is the parsers' business (hermes.py,
llama3_json.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from atom.answer_parsing.json_value import JsonValue, text_of, unwrapped

_BLANKS = " \t\r\n"
_ARGUMENTS = ("arguments", "parameters")


@dataclass(frozen=True, slots=True)
class CallKeys:
    """Says when an object is a call. is_known: whether there is a tool of this name. others: keys
    that may stand beside name and arguments; None for any. needs_arguments: else none are {}."""

    is_known: Callable[[str], bool]
    others: frozenset[str] | None
    needs_arguments: bool


class _Expects(Enum):
    OBJECT = auto()
    KEY = auto()
    COLON = auto()
    VALUE = auto()
    COMMA = auto()
    NOTHING = auto()  # it is complete
    REFUSED = auto()


class CallObject:
    """One object. name: set once it is certain that this is a call. failed: it is none."""

    def __init__(self, keys: CallKeys) -> None:
        self._keys = keys
        self._expects = _Expects.OBJECT
        self._value: JsonValue | None = None
        self._parts: list[str] = []  # of a key, or of a value that must be whole
        self._key = ""
        self._found_name = ""
        self._arguments: list[str] = []  # ready to be shown
        self._has_arguments = False
        self.name = ""

    @property
    def complete(self) -> bool:
        return self._expects is _Expects.NOTHING

    @property
    def failed(self) -> bool:
        """No call; or one whose object goes wrong behind its arguments."""
        return self._expects is _Expects.REFUSED

    def give_up(self) -> None:
        """The answer has ended by itself: arguments that are open are closed."""
        if self.name and self._value is not None and self._expects is _Expects.VALUE:
            self._arguments.append(self._value.closing())
        self._expects = _Expects.REFUSED

    def take_arguments(self) -> str:
        """Give what there is to show of them since the last time."""
        arguments, self._arguments = "".join(self._arguments), []
        return arguments

    def feed(self, text: str, position: int) -> int:
        """Go on at this position; the position behind what belongs to the object."""
        while position < len(text) and not (self.complete or self.failed):
            if self._value is not None:
                position = self._within_value(self._value, text, position)
            elif text[position] in _BLANKS:
                position += 1
            elif self._begins_value(text[position]):
                self._value = JsonValue(text[position])
            else:
                position += self._take_sign(text[position])
        return position

    def _begins_value(self, sign: str) -> bool:
        if self._expects is _Expects.KEY:
            return sign == '"'
        return self._expects is _Expects.VALUE and sign not in ",:}]"

    def _take_sign(self, sign: str) -> int:
        """Characters that were taken: none of one that has no place here."""
        expects, self._expects = self._expects, _Expects.REFUSED
        if (expects, sign) == (_Expects.OBJECT, "{"):
            self._expects = _Expects.KEY
        elif (expects, sign) == (_Expects.COLON, ":"):
            self._expects = _Expects.VALUE
        elif (expects, sign) == (_Expects.COMMA, ","):
            self._expects = _Expects.KEY
        elif sign == "}" and expects in (_Expects.COMMA, _Expects.KEY):
            self._end()
        else:
            return 0
        return 1

    def _within_value(self, value: JsonValue, text: str, position: int) -> int:
        end, part = value.feed(text, position)
        if self._expects is _Expects.VALUE and self._shows(value):
            self._arguments.append(part)
        else:
            self._parts.append(part)
        if end < 0:
            return len(text)
        if value.broken and not self.name:
            self._expects = _Expects.REFUSED
        self._value = None
        self._take_whole(value, "".join(self._parts))
        self._parts.clear()
        return end

    def _shows(self, value: JsonValue) -> bool:
        """Tell whether the value is shown as it comes."""
        if self._key not in _ARGUMENTS or self._has_arguments or not value.is_nested:
            return False
        self._become_call()
        return True

    def _take_whole(self, value: JsonValue, text: str) -> None:
        """A key or value has ended; text: of it, unless it was shown as it came."""
        if self._expects is _Expects.KEY:
            self._take_key(text)
        elif self._key == "name" and not self._found_name:
            self._take_name(text)
        else:
            self._expects = _Expects.COMMA
            if self._key in _ARGUMENTS and not self._has_arguments:
                self._has_arguments = True
                if not value.is_nested:
                    self._arguments.append(unwrapped(text))
                self._become_call()

    def _take_key(self, text: str) -> None:
        self._key = text_of(text)
        others = self._keys.others
        expected = others is None or self._key in others or self._key in ("name", *_ARGUMENTS)
        self._expects = _Expects.COLON if expected else _Expects.REFUSED

    def _take_name(self, text: str) -> None:
        name = text_of(text)
        known = bool(name) and self._keys.is_known(name)
        self._expects = _Expects.COMMA if known else _Expects.REFUSED
        if known:
            self._found_name = name
            if self._has_arguments:
                self._become_call()

    def _become_call(self) -> None:
        self.name = self._found_name

    def _end(self) -> None:
        missing = not self._has_arguments
        if not self._found_name or (missing and self._keys.needs_arguments):
            return  # refused
        if missing:
            self._arguments.append("{}")
        self._become_call()
        self._expects = _Expects.NOTHING
