"""MarkupParser: read a family's notation of calls from text that comes in pieces.

A parser of this kind is written as if it had the whole text: it requests a mark, a name or a value,
and waits while the text does not decide yet. So the cuts between pieces do not change its findings.
It returns nothing of a call until the call's name is certain, and text that turns out not to be a
call is content, unchanged. Families whose marks have their own syntax build on this class, and so
does object_calls.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator
from typing import TypeVar

from atom.answer_parsing.call_policy import MOST_READ_AGAIN
from atom.answer_parsing.events import Event
from atom.answer_parsing.found_calls import FoundCalls
from atom.answer_parsing.held_text import partial_length
from atom.answer_parsing.json_value import JsonValue, unwrapped
from atom.answer_parsing.tools import Tools

MOST_NAME_CHARS = 300  # of a tool's name with the text around it
BLANKS = " \t\r\n"
TOO_MANY = BLANKS + "}]"  # signs that models write after the arguments by mistake
FENCE = "```"

_Found = TypeVar("_Found")
# Returns its result at the end, and yields whenever it needs more text.
Reading = Generator[None, None, _Found]


class TextEndedError(Exception):
    """There is no more text where some was expected."""


class MarkupParser(ABC):
    """A `CallParser` of one answer."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._found = FoundCalls()
        self._text = ""  # not decided on yet
        self._at = 0  # the index in it to read next
        self._over = False
        self._ended = False  # by the model: an incomplete last call is closed
        self._in_call = False
        self._read_again = MOST_READ_AGAIN
        self._behind_call = False  # then only its closing marks, or another call, are not content
        self._reading = self._answer()

    @property
    def within_call(self) -> bool:
        return self._in_call or (self._at > 0 and not self._behind_call)

    def feed(self, piece: str) -> list[Event]:
        self._text += piece
        next(self._reading)
        return self._found.take()

    def finish(self, *, ended: bool) -> list[Event]:
        self._over, self._ended = True, ended
        try:
            next(self._reading)
        except TextEndedError:
            if not (self._in_call or self._behind_call):
                self._found.content(self._text)
        self._text, self._at = "", 0
        return self._found.end()

    @abstractmethod
    def _answer(self) -> Reading[None]:
        """Read the answer, to its end and beyond: it waits wherever more may come."""

    # ---- the parts of readings -----------------------------------------------------------

    def _more(self) -> Reading[None]:
        if self._over:
            raise TextEndedError
        yield

    def _decide(self) -> None:
        """Discard the text that was read: the parser will not return to it."""
        self._text, self._at = self._text[self._at :], 0

    def _blanks(self, signs: str = BLANKS) -> Reading[str]:
        """Skip blanks; return the character after them, which is not skipped."""
        while True:
            while self._at < len(self._text) and self._text[self._at] in signs:
                self._at += 1
            if self._at < len(self._text):
                return self._text[self._at]
            yield from self._more()

    def _one_of(self, *texts: str) -> Reading[str]:
        """Skip the longest of these texts that follows; return it, or "" if none follows."""
        while True:
            rest = self._text[self._at : self._at + max(map(len, texts))]
            found = max((text for text in texts if rest.startswith(text)), key=len, default="")
            longer = (text for text in texts if len(text) > len(rest) and text.startswith(rest))
            if not any(longer) or (self._over and found):
                self._at += len(found)
                return found
            yield from self._more()

    def _up_to(self, *ends: str, most: int = MOST_NAME_CHARS) -> Reading[tuple[str, str] | None]:
        """Pass the text before the first of these ends, and the end; both. None for a text longer
        than `most`."""
        start = self._at
        while True:
            places = [(at, end) for end in ends if (at := self._text.find(end, start)) >= 0]
            # An incomplete one may come before a complete one.
            held = max(partial_length(self._text, end) for end in ends)
            if places:
                position, end = min(places)
                if position < len(self._text) - held or position - start > most:
                    if position - start > most:
                        return None
                    self._at = position + len(end)
                    return self._text[start:position], end
            elif len(self._text) - held - start > most:
                return None
            yield from self._more()

    def _name(self, *ends: str) -> Reading[tuple[str, str] | None]:
        """Read a tool's name and the end after it. Names may contain an end's characters."""
        known = {name + end: (name, end) for name in self._tools for end in ends}
        if any(end in name for name in self._tools for end in ends):
            found = yield from self._one_of(*known)
            if found:
                return known[found]
        return (yield from self._up_to(*ends))

    def _begin_call(self, name: str, call_id: str = "") -> None:
        self._found.begin(name, call_id)
        self._in_call = True
        self._decide()

    def _end_call(self) -> None:
        self._in_call, self._behind_call = False, True
        self._decide()

    def _take_back(self, position: int) -> None:
        """Go back to this position, to read on from there in another way. Only so much text is read
        again in one answer; the rest stays passed."""
        if self._at - position <= self._read_again:
            self._read_again -= self._at - position
            self._at = position

    def _pass_fence(self) -> Reading[bool]:
        """Pass the beginning of a block of code; whether there is one."""
        if not (yield from self._one_of(FENCE)):
            return False
        yield from self._one_of("json", "tool_call", "tool_calls")
        yield from self._blanks()
        return True

    def _json_arguments(self, name: str, call_id: str, *ends: str) -> Reading[bool]:
        """Begin a call if its arguments, up to one of these ends, can be parsed; return whether
        they can. An object ends by itself. A call with no text before its end has the arguments
        {}."""
        try:
            yield from self._blanks()
            yield from self._pass_fence()
            first = yield from self._blanks()
        except TextEndedError:
            if self._ended:
                self._begin_call(name, call_id)
                self._found.arguments("{}")
            raise
        if first == "{":
            read = yield from self._json_object(name, call_id)
        else:
            read = yield from self._other_arguments(name, call_id, ends)
        if read:
            self._end_call()
        return read

    def _json_object(self, name: str, call_id: str) -> Reading[bool]:
        value, position = JsonValue("{"), self._at
        while True:
            position, part = value.feed(self._text, position)
            if value.failed:
                self._at = position
                return False
            if value.certain:
                self._at, position = position, 0
                if self._in_call:
                    self._decide()
                else:
                    self._begin_call(name, call_id)
                self._found.arguments(part)
            if value.over:
                return True
            try:
                yield from self._more()
            except TextEndedError:
                if self._ended and self._in_call:
                    self._found.arguments(value.closing(self._text))
                raise

    def _other_arguments(self, name: str, call_id: str, ends: tuple[str, ...]) -> Reading[bool]:
        """Read arguments that are no object: none at all, or a string that holds the object."""
        start = searched = self._at
        while True:
            places = [at for end in ends if (at := self._text.find(end, searched)) >= 0]
            place = min(places, default=-1)
            if places or self._over:
                break
            searched = max(start, len(self._text) - max(map(len, ends)))
            yield
        end = len(self._text) if place < 0 else place
        written = unwrapped(self._text[start:end].rstrip(BLANKS + "`"))
        self._at = end
        if written is None or (place < 0 and not self._ended):
            return False
        self._begin_call(name, call_id)
        self._found.arguments(written)
        return True

    def _pass_more_objects(self) -> Reading[None]:
        """Skip brackets and objects that follow a call's arguments by mistake."""
        while (yield from self._blanks(TOO_MANY)) == "{":
            value = JsonValue("{")
            while not value.over:
                self._at, _ = value.feed(self._text, self._at)
                self._decide()
                if not value.over:
                    yield from self._more()
        yield from self._one_of(FENCE)
        yield from self._blanks(TOO_MANY)


class MarkedCallParser(MarkupParser):
    """A parser of calls that begin with a mark, among content."""

    marks: tuple[str, ...]  # none is the beginning of another
    _owed: frozenset[str] = frozenset()  # marks that close the last call, and have not come yet
    _seeks = True  # no text is held, and a mark is searched for

    def __init__(self, tools: Tools) -> None:
        super().__init__(tools)
        self._signs = frozenset(mark[0] for mark in self.marks)  # that marks begin with

    def feed(self, piece: str) -> list[Event]:
        """Pass text without a sign of a mark at once, as nearly all of it is."""
        if self._seeks and self._signs.isdisjoint(piece):
            self._found.content(piece)
            return self._found.take()
        self._seeks = False
        return super().feed(piece)

    @abstractmethod
    def _call(self, mark: str) -> Reading[bool]:
        """Read the text after this mark, which was passed; return whether it was a call."""

    def _answer(self) -> Reading[None]:
        while True:
            mark = yield from self._seek()
            yield from self._pass_again(mark)
            called = yield from self._call(mark)
            self._behind_call = False
            if called:
                self._decide()
            else:
                self._refuse(mark)

    def _pass_again(self, mark: str) -> Reading[None]:
        """Pass a mark that is written more than once."""
        while len(mark) > 1:
            end = self._at
            yield from self._blanks()
            if not (yield from self._one_of(mark)):
                self._at = end
                return

    def _refuse(self, mark: str) -> None:
        """Treat this mark, the first of the text, as content; another mark may follow it."""
        self._take_back(self._text.find(mark) + len(mark))
        self._found.content(self._text[: self._at])
        self._decide()

    def _owe(self, *marks: str) -> None:
        """Set the marks that belong to the call that was found, wherever they follow."""
        self._owed = frozenset(marks)
        self._signs = frozenset(mark[0] for mark in (*self.marks, *marks))

    def _seek(self) -> Reading[str]:
        """Skip to the next mark; the text before it is content."""
        while True:
            marks = (*self.marks, *self._owed) if self._owed else self.marks
            places = [
                (at, -len(mark), mark) for mark in marks if (at := self._text.find(mark)) >= 0
            ]
            held = max(partial_length(self._text, mark) for mark in marks)
            if places:
                position, _, mark = min(places)
                self._found.content(self._text[:position])
                self._text, self._at = self._text[position:], len(mark)
                if mark not in self._owed:
                    return mark
                self._owed -= {mark}
                self._decide()
                continue
            certain = len(self._text) - held
            self._found.content(self._text[:certain])
            self._text = self._text[certain:]
            self._seeks = not self._text
            yield from self._more()
