"""Stop strings found in text that arrives in pieces, without passing any part of them on.

A matcher per request. It follows, character by character, how much of each stop string the text
ends with (Knuth, Morris and Pratt's automaton: constant work per character and stop string), and
holds back exactly the text that may still become a stop string. Knows nothing of tokens.
`SpokenStops` looks for them in the text for the user alone, if an answer may reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from atom.answer_parsing.spoken_text import SpokenText


class StopMatcher:
    """Find stop strings in a text: feed() pieces until it reports a match; flush() the held-back
    text at a normal end.

    The stop string that completes first ends the text; of two complete at the same character, the
    longer, so that no part of either shows. The result does not depend on how the text was cut.
    """

    __slots__ = (
        "_failures",
        "_first_characters",
        "_held",
        "_included",
        "_matched",
        "_stops",
        "found",
    )

    def __init__(self, stops: Sequence[str], *, included: bool = False) -> None:
        """included: the stop string that ends the text is part of it."""
        self._stops = tuple(stops)
        self._included = included
        self._failures = tuple(_failure_table(stop) for stop in self._stops)
        self._first_characters = frozenset(stop[0] for stop in self._stops)
        self._matched = [0] * len(self._stops)  # characters of each stop that the text ends with
        self._held = ""
        self.found: str | None = None  # the stop string that ended the text

    def feed(self, piece: str) -> tuple[str, bool]:
        """Return the text that is now certain, and whether a stop string ended it (then feed no
        more)."""
        if not self._held and self._first_characters.isdisjoint(piece):
            return piece, False
        text = self._held + piece
        for position in range(len(self._held), len(text)):
            length = self._advance(text[position])
            if length:
                self.found = text[position + 1 - length : position + 1]
                self._held = ""
                return text[: position + 1 - (0 if self._included else length)], True
        certain = len(text) - max(self._matched)
        self._held = text[certain:]
        return text[:certain], False

    def pass_over(self, piece: str) -> str:
        """Take text that must not end yet: stop strings complete within it pass, one that has only
        begun may still end the text that follows."""
        text = self._held + piece
        for position in range(len(self._held), len(text)):
            if self._advance(text[position]):
                self._go_on_after_a_match()
        certain = len(text) - max(self._matched)
        self._held = text[certain:]
        return text[:certain]

    def flush(self) -> str:
        """Return the text held back: generation ended before it became a stop string."""
        held, self._held = self._held, ""
        self._matched = [0] * len(self._stops)
        return held

    def _advance(self, character: str) -> int:
        """Take one character; return the length of the longest stop string it completes, or 0."""
        complete = 0
        for index, stop in enumerate(self._stops):
            matched = self._matched[index]
            while matched and stop[matched] != character:
                matched = self._failures[index][matched - 1]
            if stop[matched] == character:
                matched += 1
            self._matched[index] = matched
            if matched == len(stop):
                complete = max(complete, matched)
        return complete

    def _go_on_after_a_match(self) -> None:
        """Continue after a complete stop string, whose end may be the beginning of another one."""
        for index, stop in enumerate(self._stops):
            if self._matched[index] == len(stop):
                self._matched[index] = self._failures[index][-1]


class SpokenStops:
    """A `StopMatcher` of the text that is for the user: reasoning passes as it is."""

    __slots__ = ("_matcher", "_spoken")

    def __init__(self, matcher: StopMatcher, spoken: SpokenText) -> None:
        self._matcher = matcher
        self._spoken = spoken

    @property
    def found(self) -> str | None:
        return self._matcher.found

    def feed(self, piece: str) -> tuple[str, bool]:
        """Return the text that is now certain, and whether a stop string ended it."""
        if self._spoken.over:
            return self._matcher.feed(piece)
        shown = ""
        for is_spoken, text in self._spoken.feed(piece):
            if not is_spoken:
                shown += self._matcher.flush() + text
                continue
            certain, ended = self._matcher.feed(text)
            shown += certain
            if ended:
                return shown, True
        return shown, False

    def pass_over(self, piece: str) -> str:
        """Take text that must not end yet."""
        if self._spoken.over:
            return self._matcher.pass_over(piece)
        shown = ""
        for is_spoken, text in self._spoken.feed(piece):
            shown += self._matcher.pass_over(text) if is_spoken else self._matcher.flush() + text
        return shown

    def flush(self) -> str:
        """Return the text held back: generation ended."""
        rest = "".join(text for _, text in self._spoken.flush())
        return self._matcher.flush() + rest


@lru_cache(maxsize=64)  # the answers of one call, and often its callers', share their stop strings
def _failure_table(stop: str) -> tuple[int, ...]:
    """Compute, for each prefix of `stop`, the length of its longest proper prefix that also ends
    it."""
    table = [0] * len(stop)
    matched = 0
    for position in range(1, len(stop)):
        while matched and stop[matched] != stop[position]:
            matched = table[matched - 1]
        if stop[matched] == stop[position]:
            matched += 1
        table[position] = matched
    return tuple(table)
