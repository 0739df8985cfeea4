"""JsonValue: read a JSON value that a model writes in pieces, and write it as strict JSON.

Models write line breaks into strings, Python's quotes, words such as True and None, comments, keys
without quotes, trailing commas, numbers such as 007, and they forget brackets before a mark. Every
client refuses such text. So one reader for all families converts it to JSON while it arrives.
Strict JSON passes unchanged, character by character. Each character is examined a bounded number of
times, and the cuts between pieces do not change the result. Libraries that repair a whole text do
not promise that.

An object is readable (`certain`) from the colon after its first key, or if it is empty. Until then
nothing is written, and any other text makes it `failed`: such text is not a call's arguments.
"""

from __future__ import annotations

import json
import re
from enum import Enum, auto

from atom.answer_parsing.json_words import json_word

BLANKS = " \t\r\n"
_CONTROLS = {chr(code): f"\\u{code:04x}" for code in range(0x20)}
_CONTROLS |= {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f"}
_INSIDE = {
    '"': re.compile(r'["\\\x00-\x1f]'),
    "'": re.compile(r'["\'\\\x00-\x1f]'),
}
_HEX = re.compile(r"[0-9A-Fa-f]*")
_RUN_OF_BLANKS = re.compile(r"[ \t\r\n]*")
_KEY_WORD_END = re.compile(r"[:=,{}\[\]()<\"'\n]")
_WORD_END = re.compile(r"[,}\])<\n]|[ \t\r/#]")
_SCALAR_END = re.compile(r"[,}\]\s<]")
_COMMENT_END = re.compile(r"[\n<]")
_ESCAPES = '"\\/bfnrt'
_CLOSING = {"{": "}", "[": "]"}
_OPENING = {"}": "{", "]": "[", ")": "["}
_MOST_AHEAD = 160  # characters examined after a quote
_MOST_KEY_CHARS = 1024
_LITERAL_CHARS = 32  # of a word that a blank ends


class _Expects(Enum):
    KEY = auto()
    COLON = auto()
    VALUE = auto()
    COMMA = auto()


class JsonValue:
    """A parser of one value from its first character. over: the value has ended. broken: a mark
    interrupts the value. failed: the value is an object that cannot be parsed."""

    __slots__ = (
        "_comment", "_expects", "_key", "_open", "_pending", "_quote", "_unshown", "_waits",
        "_within_key", "_word", "broken", "certain", "failed", "first", "over",
    )  # fmt: skip

    def __init__(self, first: str, *, key: bool = False) -> None:
        """first: the value's first character, which is fed too. key: the value is a key of an
        object that the caller reads."""
        self.first = first
        self.broken = self.failed = self.over = self._waits = False
        self.certain = first != "{"
        self._open: list[str] = []  # brackets
        self._expects = _Expects.VALUE
        self._within_key = key
        self._key: list[str] = []  # text of a key whose colon has not come yet
        self._pending = ""  # a comma and blanks: dropped if no value follows
        self._quote = ""  # the one that the string which is open began with
        self._comment = ""  # its closing quote
        self._word: list[str] | None = None  # without quotes
        self._unshown: list[str] = []

    @property
    def key(self) -> str:
        """Return the JSON string of a key that has ended."""
        return "".join(self._key)

    @property
    def is_object(self) -> bool:
        return self.first == "{"

    def feed(self, text: str, position: int) -> tuple[int, str]:
        """Parse the text from `position`; return the position up to which it was read, and the JSON
        text that can be shown. The caller feeds the rest again, with more text after it."""
        written: list[str] = []
        self._waits = False
        while position < len(text) and not (self.over or self._waits):
            position = self._step(text, position, written)
        return position, self._shown(written)

    def closing(self, rest: str = "") -> str:
        """Return the text that closes the open strings, lists and objects of a value that ends
        here. rest: text that was not read yet. A key without a value is dropped."""
        written: list[str] = []
        self._close_all(written, rest)
        return self._shown(written)

    def _close_all(self, written: list[str], rest: str = "") -> None:
        if self._quote and not self._within_key:
            if not rest.startswith(self._quote):
                written.append(json.dumps(rest, ensure_ascii=False)[1:-1])
            written.append('"')
        elif self._word is not None and not self._within_key:
            written.append(json_word("".join(self._word)))
        elif self._open and self._open[-1] == "{" and self._expects is _Expects.VALUE:
            written.append("null")
        written += [_CLOSING[sign] for sign in reversed(self._open)]
        self.over = True
        if not self.certain:
            self.failed = True

    def _shown(self, written: list[str]) -> str:
        if not self.certain:
            self._unshown += written
            return ""
        if self._unshown:
            written, self._unshown = [*self._unshown, *written], []
        return "".join(written)

    def _step(self, text: str, position: int, written: list[str]) -> int:
        if self._quote:
            return self._in_string(text, position, self._key if self._within_key else written)
        if self._comment:
            return self._in_comment(text, position)
        if self._word is not None:
            return self._in_word(self._word, text, position, written)
        return self._between(text, position, written)

    def _wait(self, position: int) -> int:
        """Read on from there when more text has come."""
        self._waits = True
        return position

    def _fail(self) -> None:
        self.failed = self.over = True

    # ---- strings -------------------------------------------------------------------------

    def _in_string(self, text: str, position: int, written: list[str]) -> int:
        match = _INSIDE[self._quote].search(text, position)
        written.append(text[position : len(text) if match is None else match.start()])
        if match is None:
            return len(text)
        at, sign = match.start(), match[0]
        if sign == "\\":
            return self._escape(text, at, written)
        if sign == self._quote:
            ends = self._ends_string(text, at + 1)
            if ends is None:
                return self._wait(at)
            if ends:
                written.append('"')
                self._quote = ""
                self._end_token()
                return at + 1
        written.append(_CONTROLS.get(sign, '\\"' if sign == '"' else sign))
        return at + 1

    def _escape(self, text: str, at: int, written: list[str]) -> int:
        """Write a backslash and the next character as a JSON escape."""
        sign = text[at + 1 : at + 2]
        if not sign:
            return self._wait(at)
        if sign == "u":
            digits = _HEX.match(text, at + 2, at + 6)
            count = digits.end() - at - 2 if digits else 0
            if count < 4 and at + 2 + count == len(text):
                return self._wait(at)
            written.append(text[at : at + 6] if count == 4 else "\\\\u")
            return at + 6 if count == 4 else at + 2
        if sign in _ESCAPES:
            written.append("\\" + sign)
        elif sign == "'":
            written.append(sign)
        else:
            written.append(_CONTROLS[sign] if sign in _CONTROLS else "\\\\" + sign)
        return at + 2

    def _ends_string(self, text: str, at: int) -> bool | None:
        """Decide by the text after a quote whether it ends the string; None if more text is needed.
        In JSON a sign of its syntax follows, so a quote before any other text belongs to the
        string."""
        ahead = text[at : at + _MOST_AHEAD]
        behind = ahead.lstrip(BLANKS)
        if not behind:
            return None if len(ahead) < _MOST_AHEAD else True
        if behind[0] in "<#" or behind.startswith(("//", "/*")):
            return True
        if behind == "/":
            return None
        if self._within_key:
            return behind[0] in ":=,}"
        if behind[0] in ",}])":
            return True
        if behind[0] not in "\"'":
            return False
        if not self._open or self._open[-1] == "[" or "\n" in ahead[: -len(behind)]:
            return True
        return _is_key(behind, full=len(ahead) == _MOST_AHEAD)

    # ---- words and comments --------------------------------------------------------------

    def _in_word(self, word: list[str], text: str, position: int, written: list[str]) -> int:
        ends = _KEY_WORD_END if self._within_key else _WORD_END if self._open else _SCALAR_END
        match = ends.search(text, position)
        word.append(text[position : len(text) if match is None else match.start()])
        if self._within_key and sum(map(len, word)) > _MOST_KEY_CHARS:
            self._fail()
        if match is None:
            return len(text)
        sign, whole = match[0], "".join(word)
        if self._open and sign in " \t\r/#" and not self._within_key and not _is_literal(whole):
            word.append(sign)  # of a text without quotes
            return match.end()
        self._word = None
        if self._within_key:
            self._key.append(json.dumps(whole.strip(), ensure_ascii=False))
        else:
            written.append(json_word(whole))
        self._end_token()
        return match.start()

    def _in_comment(self, text: str, position: int) -> int:
        if self._comment == "*/":
            end = text.find("*/", position)
            if end < 0:
                return self._wait(len(text) - text.endswith("*"))
            self._comment = ""
            return end + 2
        match = _COMMENT_END.search(text, position)
        if match is None:
            return len(text)
        self._comment = ""
        return match.start()

    def _end_token(self) -> None:
        """End a string or word."""
        if self._within_key:
            self._within_key, self._expects = False, _Expects.COLON
        else:
            self._expects = _Expects.COMMA
        self.over = self.over or not self._open

    # ---- the signs between them ----------------------------------------------------------

    def _between(self, text: str, position: int, written: list[str]) -> int:
        sign = text[position]
        if sign in BLANKS:
            return self._pass_blanks(text, position, written)
        if sign in "#/":
            follows = text[position + 1 : position + 2]
            if sign == "/" and not follows:
                return self._wait(position)
            if sign == "#" or follows in "/*":
                self._comment = "*/" if follows == "*" and sign == "/" else "\n"
                return position + (1 if sign == "#" else 2)
        if sign == "<":
            self.broken = True
            self._close_all(written)
            return position
        if sign in ",:=" or sign in _OPENING:
            self._take_sign(sign, written)
            return position + 1
        if sign in "{[(":
            self._open_bracket("[" if sign == "(" else sign, written)
            return position + 1
        self._begin_token(written)
        if sign in "\"'":
            self._quote = sign
            (self._key if self._within_key else written).append('"')
            return position + 1
        self._word = []
        return position

    def _pass_blanks(self, text: str, position: int, written: list[str]) -> int:
        match = _RUN_OF_BLANKS.match(text, position)
        end = position if match is None else match.end()
        if self._pending:
            self._pending += text[position:end]
        else:
            behind_key = self._expects is _Expects.COLON
            (self._key if behind_key else written).append(text[position:end])
        return end

    def _begin_token(self, written: list[str]) -> None:
        """Begin a value or key, whichever the object allows here."""
        top = self._open[-1] if self._open else ""
        if self._expects is _Expects.COLON:
            self._take_colon(": ", written)
        elif self._expects is _Expects.COMMA and top:
            self._pending, self._expects = ", ", _Expects.KEY if top == "{" else _Expects.VALUE
        if self._expects is _Expects.KEY:
            self._within_key = True
            self._key.append(self._pending)
        else:
            written.append(self._pending)
        self._pending = ""

    def _open_bracket(self, sign: str, written: list[str]) -> None:
        begins_key = self._expects is _Expects.KEY
        if begins_key or (self._expects is _Expects.COMMA and self._open[-1:] == ["{"]):
            if not self.certain:
                self._fail()
            return  # no key: the bracket is left out
        self._begin_token(written)
        self._open.append(sign)
        self._expects = _Expects.KEY if sign == "{" else _Expects.VALUE
        written.append(sign)

    def _take_sign(self, sign: str, written: list[str]) -> None:
        if sign in _OPENING:
            self._close_bracket(sign, written)
        elif sign == ",":
            self._take_comma(written)
        elif self._expects is _Expects.COLON:
            self._take_colon(":", written)

    def _take_colon(self, text: str, written: list[str]) -> None:
        written += [*self._key, text]
        self._key.clear()
        self._expects, self.certain = _Expects.VALUE, True

    def _take_comma(self, written: list[str]) -> None:
        top = self._open[-1] if self._open else ""
        self._end_member(written)
        if self._expects is _Expects.COMMA:
            self._pending, self._expects = ",", _Expects.KEY if top == "{" else _Expects.VALUE

    def _end_member(self, written: list[str]) -> None:
        """End a member of an object; a missing value becomes null."""
        if self._expects is _Expects.COLON:
            if not self.certain:
                self._fail()
                return
            self._take_colon(": ", written)
        if self._expects is _Expects.VALUE and self._open[-1:] == ["{"]:
            written.append("null")
            self._expects = _Expects.COMMA

    def _close_bracket(self, sign: str, written: list[str]) -> None:
        """Close the last bracket of this kind, and those within it that were forgotten."""
        kind = _OPENING[sign]
        if kind not in self._open:
            return
        self._end_member(written)
        if self.failed:
            return
        written.append(self._pending[1:])
        self._pending = ""
        while True:
            closed = self._open.pop()
            written.append(_CLOSING[closed])
            if closed == kind:
                break
        self._expects = _Expects.COMMA
        if not self._open:
            self.certain = self.over = True


def _is_key(behind: str, *, full: bool) -> bool | None:
    """Return whether the text is a quoted key, which means that a comma before it is missing. full:
    no more text will be considered."""
    place = behind.find(behind[0], 1)
    after = behind[place + 1 :].lstrip(BLANKS) if place > 0 else ""
    if not after:
        return False if full else None
    return after[0] == ":"


def _is_literal(word: str) -> bool:
    return len(word) < _LITERAL_CHARS and json_word(word)[0] != '"'


def mended(text: str) -> str | None:
    """Return a whole object's text as JSON, closed if it ends too early. Return None for any other
    text, for an object that cannot be parsed, and if more than blanks follow the object."""
    text = text.strip()
    if not text.startswith("{"):
        return None
    value = JsonValue("{")
    end, written = value.feed(text, 0)
    if not value.over:
        written, end = written + value.closing(text[end:]), len(text)
    if value.failed or text[end:].strip(BLANKS + "}]"):
        return None
    return written


def text_of(text: str) -> str:
    """Return the text of a JSON string; "" for any other value."""
    try:
        value = json.loads(text, strict=False)
    except ValueError:
        return ""
    return value if isinstance(value, str) else ""


def unwrapped(text: str) -> str | None:
    """Return the arguments' text as a JSON object. Some models write a string that holds the
    object, or no text or null for no arguments. Return None if the text cannot be parsed."""
    text = text.strip()
    if text.startswith('"'):
        inner = text_of(text).strip() if len(text) > 1 else ""
        if not inner and text != '""':
            return None
        text = inner
    if text in ("", "null", "None"):
        return "{}"
    return mended(text)
