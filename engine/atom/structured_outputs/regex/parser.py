"""Parse a regular expression of ECMA-262, the dialect of JSON schema's `pattern`, with a few of
Python's spellings that have the same meaning.

Features beyond finite automata (look-around, back-references), features that the dialects interpret
differently, and invalid expressions are refused by name, with a remedy. If the dialects disagree
about a set of characters, the result is the narrow set (characters that all accept) or, within a
negated class, the loose one (characters that any accepts). Pure.
"""

from __future__ import annotations

import re

from atom.structured_outputs.regex import character_set
from atom.structured_outputs.regex.character_set import CharacterSet, of_code, of_ranges
from atom.structured_outputs.regex.syntax import (
    EMPTY,
    Anchor,
    Characters,
    Node,
    RegexError,
    choice,
    repeat,
    sequence,
)

MAX_COUNT = 65_535
_MAX_DEPTH = 64
MAX_CHARS = 4096
_COUNT = re.compile(r"\{(\d+)(?:(,)(\d*))?\}")
_BARE_COUNT = re.compile(r"\{,\d+\}")
_GROUP_NAME = re.compile(r"\(\?P?<([A-Za-z_$][\w$]*)>")
_CONTROLS = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13}
_HEX = re.compile(r"x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|u\{([0-9A-Fa-f]{1,6})\}")
_REFUSED_GROUPS = {
    "(?=": "a lookahead",
    "(?!": "a negative lookahead",
    "(?<=": "a lookbehind",
    "(?<!": "a negative lookbehind",
    "(?>": "an atomic group",
    "(?#": "a comment",
    "(?(": "a condition",
    "(?P=": "a back-reference",
}
_REFUSED_ESCAPES = {
    "b": "a word boundary (\\b)",
    "B": "a word boundary (\\B)",
    "k": "a back-reference (\\k)",
    "p": "a Unicode property (\\p)",
    "P": "a Unicode property (\\P)",
    "A": "\\A (write ^)",
    "Z": "\\Z (write $)",
    "z": "\\z (write $)",
}


def parse(text: str) -> Node:
    """Parse the expression into a tree. Raises `RegexError`."""
    if len(text) > MAX_CHARS:
        raise RegexError(f"it has {len(text)} characters; at most {MAX_CHARS} are kept")
    return _Parser(text).read()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0
        self._loose = False  # within a negated class

    def read(self) -> Node:
        found = self._choice()
        if self._at < len(self._text):
            raise self._refusal("a closing parenthesis has no opening one")
        return found

    def _refusal(self, reason: str) -> RegexError:
        return RegexError(f"{reason}, at character {self._at} of {self._text!r}")

    def _not_kept(self, feature: str) -> RegexError:
        return self._refusal(
            f"{feature} is not kept by this server; write the expression without it"
        )

    def _next(self) -> str:
        return self._text[self._at : self._at + 1]

    def _choice(self) -> Node:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise self._refusal(f"groups are nested deeper than {_MAX_DEPTH}")
        options = [self._sequence()]
        while self._next() == "|":
            self._at += 1
            options.append(self._sequence())
        self._depth -= 1
        return choice(*options)

    def _sequence(self) -> Node:
        parts: list[Node] = []
        while self._next() not in ("", "|", ")"):
            parts.append(self._repeated())
        return sequence(*parts) if parts else EMPTY

    def _repeated(self) -> Node:
        if self._next() in ("*", "+", "?") or self._counts():
            raise self._refusal("there is nothing to repeat")
        node = self._atom()
        bounds = self._bounds()
        if bounds is None:
            return node
        if isinstance(node, Anchor):
            raise self._refusal("an anchor cannot be repeated")
        if self._next() == "?":  # lazy: the same language
            self._at += 1
        elif self._next() == "+":
            raise self._not_kept("a possessive quantifier")
        if self._next() in ("*", "+", "?") or self._counts():
            raise self._refusal("a quantifier stands behind another; put the first in a group")
        return repeat(node, *bounds)

    def _counts(self) -> bool:
        return _COUNT.match(self._text, self._at) is not None

    def _bounds(self) -> tuple[int, int | None] | None:
        simple: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
        found = simple.get(self._next())
        if found is not None:
            self._at += 1
            return found
        if _BARE_COUNT.match(self._text, self._at):
            raise self._refusal("a count needs its lower bound; write {0,n}")
        count = _COUNT.match(self._text, self._at)
        if count is None:
            return None
        low = int(count[1])
        high = low if count[2] is None else int(count[3]) if count[3] else None
        if max(low, high or 0) > MAX_COUNT:
            raise self._refusal(f"a count is more than {MAX_COUNT}")
        if high is not None and high < low:
            raise self._refusal("a count's upper bound is below its lower one")
        self._at = count.end()
        return low, high

    def _atom(self) -> Node:
        character = self._next()
        if character == "(":
            return self._group()
        if character == "[":
            return Characters(self._class())
        self._at += 1
        if character in ("^", "$"):
            return Anchor(at_start=character == "^")
        if character == ".":
            return Characters(~character_set.LINE_ENDS)
        if character == "\\":
            return Characters(self._escape(in_class=False))
        return Characters(of_code(ord(character)))

    def _group(self) -> Node:
        name = _GROUP_NAME.match(self._text, self._at)
        if name is not None:
            self._at = name.end()
        elif self._text.startswith("(?:", self._at):
            self._at += 3
        elif self._text.startswith("(?", self._at):
            found = (self._text[self._at : self._at + length] for length in (4, 3))
            raise self._not_kept(
                next((_REFUSED_GROUPS[key] for key in found if key in _REFUSED_GROUPS), None)
                or "an inline flag or unknown group (?…)"
            )
        else:
            self._at += 1
        inner = self._choice()
        if self._next() != ")":
            raise self._refusal("a parenthesis is not closed")
        self._at += 1
        return inner

    def _escape(self, *, in_class: bool) -> CharacterSet:
        """Return the characters of an escape, after its backslash."""
        named = self._named_set()
        if named is not None:
            return named
        character = self._next()
        code = _CONTROLS.get(character)
        if character == "":
            raise self._refusal("a backslash stands at the end")
        if character == "b" and in_class:
            code = 8
        elif character == "0" and not self._text[self._at + 1 : self._at + 2].isdigit():
            code = 0
        elif character.isdigit():
            raise self._not_kept("a back-reference or octal escape")
        elif character in _REFUSED_ESCAPES:
            raise self._not_kept(_REFUSED_ESCAPES[character])
        elif character == "c":
            entry = self._text[self._at + 1 : self._at + 2]
            if not (entry.isascii() and entry.isalpha()):
                raise self._refusal("\\c needs a entry")
            self._at += 1
            code = ord(entry) % 32
        elif character in ("x", "u"):
            return of_code(self._hexadecimal())
        elif code is None and character.isascii() and character.isalnum():
            raise self._not_kept(f"the escape \\{character}")
        self._at += 1
        return of_code(ord(character) if code is None else code)

    def _hexadecimal(self) -> int:
        found = _HEX.match(self._text, self._at)
        if found is None:
            raise self._refusal("\\x needs two hexadecimal digits, \\u four")
        self._at = found.end()
        code = int(found[1] or found[2] or found[3], 16)
        second = re.compile(r"\\u([Dd][C-Fc-f][0-9A-Fa-f]{2})").match(self._text, self._at)
        if 0xD800 <= code < 0xDC00 and second is not None:
            self._at = second.end()
            code = 0x10000 + ((code & 0x3FF) << 10) + (int(second[1], 16) & 0x3FF)
        if 0xD800 <= code < 0xE000 or code > 0x10FFFF:
            raise self._refusal("half of a surrogate pair is no character; write \\u{…} for both")
        return code

    def _named_set(self) -> CharacterSet | None:
        character = self._next()
        sets = {
            "d": (character_set.DIGITS, character_set.loose_digits),
            "w": (character_set.WORD, character_set.loose_word),
            "s": (character_set.SPACE, character_set.loose_space),
        }
        if character == "" or character.lower() not in sets:
            return None
        self._at += 1
        narrow, loose = sets[character.lower()]
        if character.islower():
            return loose() if self._loose else narrow
        return ~(narrow if self._loose else loose())

    def _class(self) -> CharacterSet:
        opening = self._at
        self._at += 1
        negated = self._next() == "^"
        self._at += negated
        if self._next() == "]":
            raise self._refusal("a class is empty, or begins with ] (write \\])")
        # A negated class is narrow if the excluded set is loose.
        self._loose ^= negated
        found = character_set.NOTHING
        while self._next() != "]":
            if self._next() == "":
                self._at = opening
                raise self._refusal("a class is not closed")
            found |= self._class_item()
        self._loose ^= negated
        self._at += 1
        return ~found if negated else found

    def _class_item(self) -> CharacterSet:
        if self._text.startswith("[:", self._at):
            raise self._not_kept("a POSIX class ([:name:])")
        first = self._class_atom()
        if self._next() != "-" or self._text[self._at + 1 : self._at + 2] in ("]", ""):
            return first
        self._at += 1
        last = self._class_atom()
        if first.only is None or last.only is None:  # as in [\w-.]: the hyphen is itself
            return first | last | character_set.of_text("-")
        if last.only < first.only:
            raise self._refusal("a range's end is before its start")
        return of_ranges([(first.only, last.only)])

    def _class_atom(self) -> CharacterSet:
        character = self._next()
        self._at += 1
        if character == "\\":
            return self._escape(in_class=True)
        return of_code(ord(character))
