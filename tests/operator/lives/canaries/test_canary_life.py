"""Generated lives with a canary hold what the documents promise, of it and of all beside it."""

from __future__ import annotations

import pytest

from tests.operator.lives.test_generated_life import Steps, broken, scene, told
from tests.support.operator_life.happenings import GOOD, IMAGES
from tests.support.operator_life.lives import broken_seed
from tests.support.operator_life.story import Scene

# 75: its change is written into the spec while one of its pods waits for a place.
# 2022: a device falls sick under one of its pods while another pod of the spec waits for a node.
# 19: the spec is refused when the canary is deleted by hand, and its share with it. 390: promoted
# while its pods would be refused. 416: its node is lost, and back.
DAILY = (19,)
# 6000243: pods of a promoted change wait for the places of old ones while a node is drained.
# 6000214: a group of it waits for a place while groups beside it are replaced by one that fails.
MORE = (75, 0, 1, 390, 416, 2022, 6000214, 6000243)


def live(seed: int) -> None:
    found = broken_seed("canary", seed)
    assert found is None, str(found)


@pytest.mark.parametrize(
    "seed", [*DAILY, *(pytest.param(seed, marks=pytest.mark.whole) for seed in MORE)]
)
def test_lives_with_a_canary_hold_what_the_documents_promise(seed: int) -> None:
    live(seed)


_BEFORE, _NEXT = GOOD
FULL: dict[str, tuple[Scene, Steps]] = {
    "a quota": (scene(nodes=6, replicas=2, route=True), (("limit_by_a_quota", "pods", 0, 20),)),
    "nodes": (scene(devices=8, nodes=2, replicas=2, route=True), ()),
    "nodes of groups": (scene(devices=4, nodes=2, replicas=2, groups=True, route=True), ()),
}
THEN = {
    "another image": (_BEFORE, ("ask_for_an_image", _NEXT, 1300)),
    "an image that fails": (_BEFORE, ("ask_for_an_image", IMAGES[2], 1300)),
    "its own change": (_NEXT, ("write_the_change_into_the_spec", 1300)),
    "its promotion": (_NEXT, ("decide", "Promote", 1300)),
}


@pytest.mark.singles
@pytest.mark.parametrize("replicas", [1, None])
@pytest.mark.parametrize("then", THEN)
@pytest.mark.parametrize("full", FULL)
def test_a_canary_that_waits_takes_no_place_from_a_rollout(
    full: str, then: str, replicas: int | None
) -> None:
    (where, first), (image, step) = FULL[full], THEN[then]
    steps = (*first, ("ask_for_a_canary", image, replicas, False, 400), step)
    assert broken(told(where, steps)) is None


@pytest.mark.slow
@pytest.mark.parametrize("hundred", range(20))
def test_two_thousand_lives_with_a_canary(hundred: int) -> None:
    for seed in range(100 * hundred, 100 * hundred + 100):
        live(seed)
