"""The kinds of generated lives by name, and what one seed of a kind breaks.

Needs no test runner, so that a run of many lives goes wherever the operator does.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tests.support.operator_life.canaries import draw_canary_story
from tests.support.operator_life.closed import draw_closed_story
from tests.support.operator_life.life import play
from tests.support.operator_life.pairs import draw_pair_story
from tests.support.operator_life.story import Story, draw_story, shortest
from tests.support.operator_life.wider import draw_wider_story

KINDS: Mapping[str, Callable[[int], Story]] = {
    "plain": draw_story,
    "wider": draw_wider_story,
    "canary": draw_canary_story,
    "pair": draw_pair_story,
    "closed": draw_closed_story,
}
_SAME = 30  # characters by which two failures are of one promise


@dataclass(frozen=True, slots=True)
class Broken:
    """A seed whose life breaks a promise, told with the fewest happenings that break it."""

    kind: str
    seed: int
    words: str
    story: Story

    @property
    def cause(self) -> str:
        """Return the promise in a line, without its circumstances."""
        return self.words.partition("\n")[0]

    def __str__(self) -> str:
        return f"{self.kind} seed {self.seed}: {self.words}\n{self.story}"


def broken(story: Story) -> str | None:
    """Return the promise that a story breaks, with its circumstances."""
    try:
        play(story)
    except AssertionError as error:
        return str(error)
    return None


def broken_seed(kind: str, seed: int) -> Broken | None:
    """Play the life of a seed and shorten it if it breaks a promise or raises an error."""
    story = KINDS[kind](seed)
    found = _outcome(story)
    if found is None:
        return None
    short = shortest(story, lambda shorter: (_outcome(shorter) or "")[:_SAME] == found[:_SAME])
    return Broken(kind, seed, _outcome(short) or found, short)


def _outcome(story: Story) -> str | None:
    """Return the broken promise, or the traceback of any other error, its last line first."""
    try:
        return broken(story)
    except Exception as error:
        lines = traceback.format_exc()
        return f"{type(error).__name__}: {error}\n{lines}"
