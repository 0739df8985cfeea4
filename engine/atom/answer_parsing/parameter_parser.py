"""ParameterParser: calls whose arguments are written one by one between marks, in XML's manner.

Such notations have no escapes, so a value may contain marks. An end mark ends the value only if a
mark that belongs there follows. The mark of the next argument ends the value if the tool has that
argument and the call has not given it yet. The marks that close a call end the value if another
call or the end of the answer follows, since models forget end marks. Strings are passed on as they
arrive, other values once they have ended. Families define how their marks are read (tool_parsers).
"""

from __future__ import annotations

import json
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from atom.answer_parsing.argument_types import json_of, only_string
from atom.answer_parsing.call_policy import properties_of
from atom.answer_parsing.held_text import partial_length
from atom.answer_parsing.markup_parser import Reading, TextEndedError
from atom.answer_parsing.object_calls import ObjectCallParser

MOST_KEY_CHARS = 1024
_MOST_JUNK_CHARS = 512  # between arguments


@dataclass(frozen=True, slots=True)
class Parameter:
    """An argument whose opening was read: its key, and JSON schema's types of its value."""

    key: str
    types: frozenset[str]


class ParameterParser(ObjectCallParser):
    """A `CallParser` of one answer. value_ends: one of them follows each value; openings: begin an
    argument; call_ends: one of them follows the last argument; closers: close calls after that,
    from the inside out; lines: values are on separate lines; strays: marks that are ignored if they
    are unexpected."""

    value_ends: tuple[str, ...]
    openings: tuple[str, ...]
    call_ends: ClassVar[tuple[str, ...]]
    closers: ClassVar[tuple[str, ...]] = ()
    strays: ClassVar[tuple[str, ...]] = ()
    lines: ClassVar[bool] = False
    _start = 0  # in the text, of the value that is read
    _searched = 0  # in the text: no value ends before
    _closed = -1  # the index in the text at which a call may have been closed within the value
    _tool = ""

    @abstractmethod
    def _parameter(self) -> Reading[Parameter | None]:
        """Read the opening of an argument, up to its value; return None if it is not an
        argument."""

    def _body(self, tool: str) -> Reading[bool]:
        """Read the arguments of a call of this tool and its closing marks, up to the mark of the
        next call; return whether the arguments can be parsed."""
        self._tool, self._keys, self._junk = tool, set[str](), ""
        head_end = self._at
        try:
            read = yield from self._arguments_in_turn()
        except TextEndedError:
            if self._ended and not self._in_call and not self._text[head_end:].strip():
                self._begin_call(tool)
            if self._ended and self._in_call:
                self._found.arguments("}" if self._keys else "{}")
            self._give_junk()
            raise
        if read:
            self._end_call()
            self._owe(*self.call_ends, *self.closers)
            self._give_junk()
            for mark in self.call_ends:
                yield from self._pass_again(mark)
        return read

    def _give_junk(self) -> None:
        """Add the text between arguments as content after the call."""
        if self._in_call or self._behind_call:
            self._found.content(self._junk.strip())

    def _arguments_in_turn(self) -> Reading[bool]:
        marks = (*self.call_ends, *self.closers, *self.marks, *self.openings)
        broken = False
        while True:
            sign = yield from self._blanks()
            if sign == "{" and not (self._in_call or broken):
                return (yield from self._json_body())
            at = self._at
            parameter = yield from self._parameter()
            if parameter is not None:
                yield from self._argument(parameter)
                continue
            self._at = at
            found = yield from self._one_of(*marks, *self.strays)
            if found in self.openings or found in self.strays:
                broken = broken or found in self.openings
                continue
            self._at -= 0 if found in self.call_ends else len(found)
            if found:
                return self._close(broken=broken)
            if not (self._in_call or broken):
                return False
            if not (yield from self._pass_junk((*marks, *self.strays))):
                return self._close(broken=broken)

    def _close(self, *, broken: bool) -> bool:
        """End the call; return whether it can be parsed."""
        if broken and not self._keys:
            return False
        if not self._in_call:
            self._begin_call(self._tool)
        self._found.arguments("}" if self._keys else "{}")
        return True

    def _pass_junk(self, marks: tuple[str, ...]) -> Reading[bool]:
        """Pass text that is no argument, up to a mark; whether one follows soon."""
        start = self._at
        while True:
            places = [at for mark in marks if (at := self._text.find(mark, start)) >= 0]
            if places or len(self._text) - start > _MOST_JUNK_CHARS:
                break
            yield from self._more()
        if not places or min(places) - start > _MOST_JUNK_CHARS:
            return False
        self._at = min(places)
        self._junk += self._text[start : self._at].strip() + " "
        return True

    def _json_body(self) -> Reading[bool]:
        """Read arguments that are written as JSON all the same."""
        if not (yield from self._json_arguments(self._tool, "", *self.call_ends)):
            return False
        yield from self._pass_more_objects()
        yield from self._one_of(*self.call_ends)
        return True

    # ---- one argument --------------------------------------------------------------------

    def _argument(self, parameter: Parameter) -> Reading[None]:
        """Read the value that follows the opening of an argument."""
        before = ", " if self._keys else "{"
        before += json.dumps(parameter.key, ensure_ascii=False) + ": "
        self._closed = -1
        if only_string(parameter.types):
            self._begin_argument(parameter, before + '"')
            yield from self._string_value()
            self._found.arguments('"')
        else:
            yield from self._other_value(parameter, before)
        self._decide()

    def _begin_argument(self, parameter: Parameter, written: str) -> None:
        if not self._in_call:
            self._begin_call(self._tool)
        self._keys.add(parameter.key)
        self._found.arguments(written)
        self._decide()
        self._start = self._searched = 0

    def _string_value(self) -> Reading[None]:
        try:
            if self.lines and (yield from self._sees_line()):
                self._at += 1
            self._decide()
            while not (end := (yield from self._value_end())):
                certain = self._certain()
                self._found.arguments(_escaped(self._text[:certain]))
                self._text, self._searched = self._text[certain:], self._searched - certain
                self._closed -= certain if self._closed >= 0 else 0
                yield from self._more()
        except TextEndedError:
            end = self._end_of_cut_value()
            self._found.arguments(_escaped(self._text[: end[0]]))
            if end[1] < 0:
                if self._ended:
                    self._found.arguments('"')
                raise
            self._at = end[1]
            return
        self._found.arguments(_escaped(self._text[: end[0]]))
        self._at = end[1]

    def _other_value(self, parameter: Parameter, before: str) -> Reading[None]:
        self._start = self._searched = self._at
        if self._in_call:
            self._decide()
            self._start = self._searched = 0
        try:
            while not (end := (yield from self._value_end())):
                yield from self._more()
        except TextEndedError:
            end = self._end_of_cut_value()
            if end[1] < 0 and (not self._ended or end[0] <= self._start):
                raise
        text = self._text[self._start : end[0]]
        self._at = end[1] if end[1] >= 0 else len(self._text)
        text = text.removeprefix("\n") if self.lines else text
        self._begin_argument(parameter, before + json_of(text, parameter.types))

    def _sees_line(self) -> Reading[bool]:
        while self._at == len(self._text):
            yield from self._more()
        return self._text[self._at] == "\n"

    @property
    def _ends(self) -> tuple[str, ...]:
        return (*self.value_ends, *self.openings, *self.call_ends)

    def _value_end(self) -> Reading[tuple[int, int] | None]:
        """Find the end of the value and the position from which to read on; None if the text does
        not have it yet."""
        ends = self._ends
        while True:
            places = [
                (at, -len(mark), mark)
                for mark in ends if (at := self._text.find(mark, self._searched)) >= 0
            ]  # fmt: skip
            if not places:
                self._at = self._start
                self._searched = max(self._searched, len(self._text) - self._held())
                return None
            place, _, mark = min(places)
            behind = yield from self._behind_value(place, mark)
            if behind >= 0:
                own = behind > place  # the value has its own end mark
                return self._without_lines(
                    place, int(self.lines) if own else 1 + self.lines
                ), behind
            self._searched = place + 1

    def _behind_value(self, place: int, mark: str) -> Reading[int]:
        """Return the position to read on from if this mark ends the value; else -1."""
        self._at = place + len(mark)
        try:
            if mark in self.value_ends:
                behind = self._at
                yield from self._blanks()
                follows = (*self.call_ends, *self.closers, *self.marks, *self.openings)
                found = yield from self._one_of(*follows)
                if found in self.openings and mark != self.value_ends[0]:
                    another = yield from self._begins_another(self._at - len(found))
                    return behind if another else -1
                return behind if found else -1
            if mark in self.openings:
                return place if (yield from self._begins_another(place)) else -1
            return place if (yield from self._closes(place)) else -1
        except TextEndedError:
            if mark in self.value_ends:
                return place + len(mark)
            return place if mark in self.call_ends else -1

    def _begins_another(self, place: int) -> Reading[bool]:
        """Return whether the opening at `place` begins an argument that the tool has and this call
        has not given yet."""
        if self.lines and place > self._start and self._text[place - 1] != "\n":
            return False
        self._at = place
        parameter = yield from self._parameter()
        known = properties_of(self._tools.get(self._tool))
        return parameter is not None and parameter.key in known and parameter.key not in self._keys

    def _closes(self, place: int) -> Reading[bool]:
        """Return whether another call follows the end of a call at `place`, inside a value. If all
        closing marks of the call follow, the value ends there unless it has an end mark later."""
        yield from self._blanks()
        closed = True
        for closer in self.closers:
            closed = bool((yield from self._one_of(closer)))
            yield from self._blanks()
        if (yield from self._one_of(*self.marks)):
            return True
        if closed and self._closed < 0:
            self._closed = place
        return False

    def _without_lines(self, end: int, most: int) -> int:
        """Return the end of a value without its last line breaks, at most `most`, that belong to
        the marks."""
        for _ in range(most):
            end -= end > self._start and self._text[end - 1] == "\n"
        return end

    def _held(self) -> int:
        """Return how many characters at the end may be the beginning of a mark."""
        return max(partial_length(self._text, mark) for mark in self._ends)

    def _certain(self) -> int:
        """Return how many characters certainly belong to the value."""
        certain = len(self._text) - self._held()
        if self._closed >= 0:
            certain = min(certain, self._closed)
        return self._without_lines(certain, 1 + self.lines)

    def _end_of_cut_value(self) -> tuple[int, int]:
        """Find the end of a value within which the answer ends, as `_value_end` does; the place to
        read on from is -1 but for a value that the end of the call has cut."""
        if self._closed >= 0:
            return self._without_lines(self._closed, 1 + self.lines), self._closed
        end = len(self._text) - self._held()
        return self._without_lines(end, len(self._text) if self.lines else 0), -1


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]
