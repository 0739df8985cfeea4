"""Generated lives with a canary hold what the documents promise, of it and of all beside it."""

from __future__ import annotations

import pytest

from tests.support.operator_life.lives import broken_seed

# 75: its change is written into the spec while one of its pods waits for a place.
# 2022: a device falls sick under one of its pods while another pod of the spec waits for a node.
# 19: the spec is refused when the canary is deleted by hand, and its share with it. 390: promoted
# while its pods would be refused. 416: its node is lost, and back.
DAILY = (19,)
# 6000243: pods of a promoted change wait for the places of old ones while a node is drained.
MORE = (75, 0, 1, 390, 416, 2022, 6000243)


def live(seed: int) -> None:
    found = broken_seed("canary", seed)
    assert found is None, str(found)


@pytest.mark.parametrize(
    "seed", [*DAILY, *(pytest.param(seed, marks=pytest.mark.whole) for seed in MORE)]
)
def test_lives_with_a_canary_hold_what_the_documents_promise(seed: int) -> None:
    live(seed)


@pytest.mark.slow
@pytest.mark.parametrize("hundred", range(20))
def test_two_thousand_lives_with_a_canary(hundred: int) -> None:
    for seed in range(100 * hundred, 100 * hundred + 100):
        live(seed)
