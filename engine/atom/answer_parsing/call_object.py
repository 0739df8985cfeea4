"""Parse a tool call written as a JSON object, {"name": …, "arguments": {…}}, in pieces.

The name must be known before the arguments are shown. The arguments are then written as JSON
(json_value.py). The object may also use the notation of Python or JavaScript, and it may be wrapped
as APIs write it: {"type": "function", "function": {…}}. The parsers in object_calls.py handle the
text around the object.
"""

from __future__ import annotations

from enum import Enum, auto

from atom.answer_parsing.call_policy import known_name
from atom.answer_parsing.json_value import BLANKS, JsonValue, text_of, unwrapped
from atom.answer_parsing.tools import Tools

_ARGUMENTS = ("arguments", "parameters")
_WRAPPER = "function"
_BARE_KEYS = ("type", "id", "name", _WRAPPER, *_ARGUMENTS)


class _Expects(Enum):
    OBJECT = auto()
    KEY = auto()
    COLON = auto()
    VALUE = auto()
    COMMA = auto()
    NOTHING = auto()  # it is complete
    REFUSED = auto()


class CallObject:
    """A parser of one call object. name: set as soon as the object is certain to be a call. failed:
    the object is not a call. bare: no mark announces the call, so the object must have arguments
    and no keys of another kind of object."""

    def __init__(self, tools: Tools, *, bare: bool) -> None:
        self._tools = tools
        self._bare = bare
        self._expects = _Expects.OBJECT
        self._value: JsonValue | None = None
        self._parts: list[str] = []  # of a value that must be whole
        self._key = ""
        self._found_name = ""
        self._arguments: list[str] = []  # ready to be shown
        self._has_arguments = False
        self._depth = 0  # of wrappers
        self.name = ""

    @property
    def complete(self) -> bool:
        return self._expects is _Expects.NOTHING

    @property
    def failed(self) -> bool:
        """Return whether the object is not a call, or is broken after its arguments."""
        return self._expects is _Expects.REFUSED

    def give_up(self, rest: str) -> None:
        """Close the open arguments: the answer has ended. rest: text that was not read."""
        if self.name and self._value is not None and self._is_arguments:
            self._arguments.append(self._value.closing(rest))
        self._expects = _Expects.REFUSED

    def take_arguments(self) -> str:
        """Return the argument text that became ready since the last call, and clear it."""
        arguments, self._arguments = "".join(self._arguments), []
        return arguments

    def feed(self, text: str, position: int) -> int:
        """Parse the text from this position; return the position up to which it was read. The
        caller feeds the rest again, with more text after it."""
        while position < len(text) and not (self.complete or self.failed):
            value = self._value
            if value is not None:
                position = self._within_value(value, text, position)
                if not value.over:
                    break
            elif text[position] in BLANKS:
                position += 1
            elif self._begins_value(text[position]):
                self._value = JsonValue(text[position], key=self._expects is _Expects.KEY)
            else:
                position += self._take_sign(text[position])
        return position

    @property
    def _is_arguments(self) -> bool:
        return (
            self._expects is _Expects.VALUE
            and self._key in _ARGUMENTS
            and not self._has_arguments
        )  # fmt: skip

    def _begins_value(self, sign: str) -> bool:
        if self._expects is _Expects.COMMA and self.name and (sign in "\"'{" or sign.isalpha()):
            # After the arguments: a comma is missing, or an object is repeated.
            self._key, self._expects = "", _Expects.VALUE if sign == "{" else _Expects.KEY
        if self._expects is _Expects.KEY:
            return sign in "\"'_" or sign.isalpha()
        if self._expects is _Expects.VALUE and self._key == _WRAPPER and not self._found_name:
            return sign not in ",:}]{"
        return self._expects is _Expects.VALUE and sign not in ",:}]"

    def _take_sign(self, sign: str) -> int:
        """Take a sign; return the number of characters taken, 0 for a sign in a wrong place."""
        expects, self._expects = self._expects, _Expects.REFUSED
        if (expects, sign) == (_Expects.OBJECT, "{"):
            self._expects = _Expects.KEY
        elif (expects, sign) == (_Expects.VALUE, "{"):
            self._depth, self._expects = self._depth + 1, _Expects.KEY
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
        self._parts.append(part)
        if self._is_arguments and value.is_object and value.certain:
            self._show()
        if not value.over:
            return end
        if value.failed or (value.broken and not self.name):
            self._expects = _Expects.REFUSED
        written = "".join(self._parts)
        self._value = None
        self._parts.clear()
        if self._expects is _Expects.KEY:
            self._take_key(text_of(value.key))
        elif not self.failed:
            self._take_whole(value, written)
        return end

    def _show(self) -> None:
        """Show the arguments as they arrive, once the name is known."""
        if not self.name and self._found_name:
            self.name = self._found_name
        if self.name:
            self._arguments += self._parts
            self._parts.clear()

    def _take_whole(self, value: JsonValue, text: str) -> None:
        """Take a value that has ended; text: of it, unless it was shown as it arrived."""
        is_arguments, self._expects = self._is_arguments, _Expects.COMMA
        if self._key == "name" and not self._found_name:
            self._take_name(text)
        elif is_arguments:
            written = text if value.is_object else unwrapped(text)
            if written is None or value.first == "[":
                self._expects = _Expects.REFUSED
                return
            self._has_arguments = True
            self._arguments.append(written)
            self.name = self._found_name

    def _take_key(self, key: str) -> None:
        self._key = key
        expected = not self._bare or key in _BARE_KEYS or bool(self.name)
        self._expects = _Expects.COLON if expected else _Expects.REFUSED

    def _take_name(self, text: str) -> None:
        self._found_name = known_name(text_of(text), self._tools)
        if not self._found_name:
            self._expects = _Expects.REFUSED
        elif self._has_arguments:
            self.name = self._found_name

    def _end(self) -> None:
        missing = not self._has_arguments
        if self._depth:
            self._depth, self._expects = self._depth - 1, _Expects.COMMA
            return
        if not self._found_name or (missing and self._bare):
            return  # refused
        if missing:
            self._arguments.append("{}")
        self.name = self._found_name
        self._expects = _Expects.NOTHING
