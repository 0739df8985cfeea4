"""Generated lives of an AtomDeployment hold what the documents promise, whatever comes together.

A life that breaks a promise is told with the fewest happenings that break it.
"""

from __future__ import annotations

import pytest

from tests.support.operator_life.life import play
from tests.support.operator_life.story import Story, draw_story, shortest

DAILY = 30
LIVES_A_TEST = 100


def broken(story: Story) -> str | None:
    """The promise that a story breaks, with its circumstances."""
    try:
        play(story)
    except AssertionError as error:
        return str(error)
    return None


def live(seed: int) -> None:
    story = draw_story(seed)
    found = broken(story)
    if found is None:
        return
    promise = found[:30]
    short = shortest(story, lambda shorter: (broken(shorter) or "")[:30] == promise)
    pytest.fail(f"seed {seed}: {broken(short)}\n{short}")


def test_lives_hold_what_the_documents_promise() -> None:
    for seed in range(DAILY):
        live(seed)


@pytest.mark.slow
@pytest.mark.parametrize("hundred", range(100))
def test_ten_thousand_lives_hold_what_the_documents_promise(hundred: int) -> None:
    for seed in range(hundred * LIVES_A_TEST, (hundred + 1) * LIVES_A_TEST):
        live(seed)
