"""CallSection: calls with a name and JSON arguments, in a section of their own.

    SECTION CALL name SEPARATOR {"city": "Paris"} END CALL … END SECTION_END

DeepSeek and Kimi write them so, each with its own marks and heads of calls (families/). A section's
marks may be missing, as models forget them.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from atom.answer_parsing.markup_parser import TOO_MANY, MarkedCallParser, Reading


class CallSection(MarkedCallParser):
    """A `CallParser` of one answer. call, call_end: around each call; section_end: behind the
    last."""

    call: ClassVar[str]
    call_end: ClassVar[str]
    section_end: ClassVar[str]

    @abstractmethod
    def _head(self) -> Reading[tuple[str, str] | None]:
        """Pass a call up to its arguments: name and id. None for what is no call."""

    def _close(self) -> Reading[None]:
        """Pass what closes a call, behind its arguments."""
        yield from self._one_of(self.call_end)

    def _call(self, mark: str) -> Reading[bool]:
        if mark != self.call:
            yield from self._blanks()
            if not (yield from self._one_of(self.call)):
                return False
        if not (yield from self._one_call()):
            return False
        while True:
            yield from self._blanks()
            found = yield from self._one_of(self.call, self.section_end)
            if found == self.section_end:
                return True
            if not found:
                self._at = 0  # content
                return True
            if not (yield from self._one_call()):
                self._refuse(self.call)
                return True

    def _one_call(self) -> Reading[bool]:
        head = yield from self._head()
        if head is None:
            return False
        self._begin_call(*head)
        yield from self._json_arguments("\n```", self.call_end, self.section_end)
        yield from self._blanks(TOO_MANY)
        yield from self._close()
        self._decide()
        return True
