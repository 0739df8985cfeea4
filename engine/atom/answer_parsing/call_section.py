"""CallSection: calls with a name and JSON arguments, grouped in a section.

    SECTION CALL name SEPARATOR {"city": "Paris"} END CALL … END SECTION_END

DeepSeek and Kimi write calls in this form, each with its own marks and heads of calls (families/).
A section's marks may be missing, since models forget them.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from atom.answer_parsing.markup_parser import MarkedCallParser, Reading


class CallSection(MarkedCallParser):
    """A `CallParser` of one answer. call, call_end: around each call; section_ends: one of them
    follows the last call."""

    call: ClassVar[str]
    call_end: ClassVar[str]
    section_ends: ClassVar[tuple[str, ...]]

    @abstractmethod
    def _head(self) -> Reading[tuple[str, str] | None]:
        """Read a call up to its arguments; return its name and id, or None if it is not a call."""

    def _call(self, mark: str) -> Reading[bool]:
        sectioned = mark != self.call
        if sectioned:
            yield from self._blanks()
            if not (yield from self._one_of(self.call)):
                return False
            yield from self._pass_again(self.call)
        if not (yield from self._one_call()):
            return False
        while True:
            owed = self.section_ends if sectioned else ()
            self._owe(self.call_end, *self.section_ends)
            yield from self._pass_more_objects()
            if (yield from self._one_of(self.call_end)):
                self._owe(*owed)
                yield from self._pass_again(self.call_end)
            end = self._at
            yield from self._blanks()
            found = yield from self._one_of(self.call, *self.section_ends)
            if found in self.section_ends:
                self._owe()
                yield from self._pass_again(found)
                return True
            if not found:
                self._at = end  # content
                return True
            if not (yield from self._one_call()):
                self._refuse(self.call)
                return True

    def _one_call(self) -> Reading[bool]:
        head = yield from self._head()
        if head is None:
            return False
        return (yield from self._json_arguments(*head, self.call_end, *self.section_ends))
