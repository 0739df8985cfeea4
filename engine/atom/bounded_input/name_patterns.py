"""Untrusted regular expressions, searched in time that is linear in the name.

A checkpoint or an adapter may name its modules by patterns. Python's own engine backtracks, and
holds the interpreter's lock meanwhile: one short pattern stops a server for ever. RE2 does not
backtrack (https://swtch.com/~rsc/regexp/regexp3.html), and refuses patterns that need it. Published
checkpoints use a lookahead at the beginning to exclude all modules but experts; here a lookahead is
a separate search. Callers name the file and the remedy.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

MOST_PATTERNS = 1024  # of one list; names without special characters are not counted
_MOST_CHARACTERS = 2048
_AHEAD = ("(?!", "(?=")
_GLOB = re.compile(r"\*+|\?|\[!?\]?[^\]]*\]|.", re.DOTALL)
_PLAIN = re.compile(r"[\w.\-]+")


class NamePatternError(ValueError):
    """A pattern cannot be used to search names; the message gives the reason and follows the
    pattern."""


@dataclass(frozen=True, slots=True)
class NamePattern:
    """A compiled pattern: all of `wanted` and none of `unwanted` match the beginning of a name."""

    wanted: tuple[Any, ...]
    unwanted: tuple[Any, ...] = ()

    def matches(self, name: str) -> bool:
        """Return whether the pattern matches from the beginning of the name."""
        return all(each.match(name) for each in self.wanted) and not any(
            each.match(name) for each in self.unwanted
        )


def compile_pattern(pattern: str) -> NamePattern:
    """Compile a pattern that is searched from the beginning of a name. Raises
    `NamePatternError`."""
    if len(pattern) > _MOST_CHARACTERS:
        raise NamePatternError(f"is longer than {_MOST_CHARACTERS} characters")
    rest = pattern.removeprefix("^")
    wanted: list[Any] = []
    unwanted: list[Any] = []
    while rest.startswith(_AHEAD):
        end = _end_of_group(rest)
        (unwanted if rest[2] == "!" else wanted).append(_compiled(rest[3 : end - 1]))
        rest = rest[end:]
    if (wanted or unwanted) and _has_branches(rest):
        raise NamePatternError("looks ahead in one of its branches; write a pattern for each")
    if not (wanted or unwanted):
        return NamePattern((_compiled(pattern),))
    return NamePattern((*wanted, _compiled(rest)), tuple(unwanted))


def compile_patterns(patterns: Iterable[str]) -> tuple[NamePattern, ...]:
    """Compile the patterns of a list. Raises `NamePatternError`, which begins with the pattern."""
    found: list[NamePattern] = []
    for pattern in patterns:
        if len(found) == MOST_PATTERNS:
            raise NamePatternError(f"there are more than {MOST_PATTERNS} patterns")
        try:
            found.append(compile_pattern(pattern))
        except NamePatternError as error:
            raise NamePatternError(f"{pattern[:80]!r} {error}") from None
    return tuple(found)


def glob_pattern(glob: str) -> str:
    """Write a pattern of whole names, as fnmatch has them, as a regular expression."""
    return f"^(?:{_GLOB.sub(_of_glob, glob)})$"


def _of_glob(part: re.Match[str]) -> str:
    sign = part[0]
    if sign[0] in "*?":
        return "." if sign == "?" else ".*"
    if len(sign) == 1:
        return re.escape(sign)
    return "[^" + sign[2:].replace("\\", r"\\") if sign[1] == "!" else sign.replace("\\", r"\\")


class NameEnds:
    """Patterns of the ends of dotted names; the first one that matches a name applies.

    An end begins with the name or after a dot, as in PEFT's rank_pattern. Most ends are names
    without special characters, which are looked up in constant time for any number of them.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        """Raises `NamePatternError`, which begins with the pattern."""
        self._tree: dict[str, Any] = {}
        special = []
        for place, pattern in enumerate(patterns):
            if _PLAIN.fullmatch(pattern):
                node = self._tree
                for sign in reversed(pattern):
                    node = node.setdefault(sign, {})
                node.setdefault("", place)
            else:
                special.append(place)
        whole = compile_patterns(rf"(.*\.)?({patterns[place]})$" for place in special)
        self._special = tuple(zip(special, whole, strict=True))

    def first(self, name: str) -> int | None:
        """Return the place of the first pattern that matches; None if no pattern does."""
        found = [place for place, pattern in self._special if pattern.matches(name)]
        nodes = [self._tree]
        for sign, before in zip(reversed(name), ("." + name)[-2::-1], strict=True):
            nodes = [node[key] for node in nodes for key in {sign, "."} if key in node]
            if before == ".":
                found += [node[""] for node in nodes if "" in node]
        return min(found, default=None)


def _has_branches(pattern: str) -> bool:
    """Return whether a | of the pattern is outside all groups."""
    try:
        _end_of_group(f"({pattern})", "|")
    except NamePatternError:
        return False
    return True


def _end_of_group(text: str, last: str = ")") -> int:
    """Return the end of the group that a text begins with, or the end of its first branch."""
    depth, place, in_class = 0, 0, False
    while place < len(text):
        sign = text[place]
        if sign == "\\":
            place += 1
        elif in_class:
            in_class = sign != "]"
        elif sign == "[":
            in_class = True
            place += text[place + 1 : place + 2] == "^"
            place += text[place + 1 : place + 2] == "]"
        elif depth == 1 and sign == last:
            return place + 1
        elif sign in "()":
            depth += 1 if sign == "(" else -1
        place += 1
    raise NamePatternError("is no regular expression (a group has no end)")


def _compiled(pattern: str) -> Any:
    import re2  # at the first pattern: few checkpoints have one

    options = re2.Options()
    options.log_errors = False
    options.max_mem = 1 << 18  # bytes: hundreds of times what published patterns take
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0] if error.args else error
        said = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
        raise NamePatternError(
            f"is no regular expression that is searched in linear time ({said[:80]})"
        ) from None
