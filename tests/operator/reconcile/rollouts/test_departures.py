"""A quota's refusal is old once a pod of ours has gone, until the next try is refused too."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from atom_operator.domain import DeploymentState, ObjectKey, Observed, PodState
from atom_operator.domain.observed import RefusedPods, WorkloadProgress
from atom_operator.reconcile.departures import Departures
from tests.support.operator.builders_operator import KEY

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
WORDS = "exceeded quota: one, requested: pods=1, used: pods=3, limited: pods=3"


def seen(seconds: int, pods: int, *, refused_at: int | None, words: str | None = WORDS) -> Observed:
    """A look at so many pods, when the newest refusal was at that second."""
    state = DeploymentState(
        desired=3,
        replicas=pods,
        updated=0,
        ready=pods,
        available=pods,
        revision="new",
        progress=WorkloadProgress(refused_message=words),
    )
    found = tuple(PodState(f"chat-{number}", ready=True) for number in range(pods))
    time = START + timedelta(seconds=seconds)
    told = None if refused_at is None else START + timedelta(seconds=refused_at)
    return Observed(
        children={}, deployment=state, pods=found, at=time, refused=RefusedPods(at=told)
    )


BEFORE = seen(-9, 3, refused_at=None, words=None)  # nothing is refused yet


def told(
    *looks: Observed, departures: Departures | None = None, key: ObjectKey = KEY
) -> list[bool]:
    departures = departures or Departures()
    return [departures.are_newer(key, look) for look in looks]


def test_a_refusal_is_old_from_a_departure_to_the_next_try() -> None:
    assert told(
        BEFORE,
        seen(0, 3, refused_at=0),
        seen(10, 2, refused_at=0),
        seen(40, 2, refused_at=0),
        seen(70, 2, refused_at=60),
        seen(80, 2, refused_at=60),
        seen(90, 1, refused_at=60),
    ) == [False, False, True, True, False, False, True]


@pytest.mark.parametrize("ahead", [0, 1, 30])
def test_a_refusal_of_the_same_second_is_old_by_whichever_clock(ahead: int) -> None:
    assert told(
        BEFORE,
        seen(0, 3, refused_at=ahead),
        seen(0, 2, refused_at=ahead),
        seen(20, 2, refused_at=ahead),
        seen(40, 2, refused_at=ahead + 40),
    ) == [False, False, True, True, False]


def test_a_pod_that_has_gone_by_the_first_refusal_makes_it_old() -> None:
    assert told(BEFORE, seen(0, 2, refused_at=0), seen(9, 2, refused_at=9)) == [False, True, False]


def test_who_has_not_looked_before_takes_the_words_for_old_at_first() -> None:
    assert told(seen(100, 2, refused_at=90), seen(130, 2, refused_at=120)) == [True, False]


def test_without_a_newer_event_it_was_tried_after_some_minutes() -> None:
    for refused_at in (None, 0):
        looks = (seen(at, 2, refused_at=refused_at) for at in (10, 200, 309, 310))
        assert told(*looks) == [True, True, True, False]


def test_a_departure_is_forgotten_when_nothing_is_refused() -> None:
    departures = Departures()
    assert told(seen(10, 2, refused_at=0), departures=departures) == [True]
    assert told(seen(20, 3, refused_at=0, words=None), departures=departures) == [False]
    assert told(seen(30, 3, refused_at=30), departures=departures) == [False]


def test_a_look_of_the_webhook_changes_nothing() -> None:
    departures, review = Departures(), replace(seen(5, 2, refused_at=0), at=None)
    looks = (BEFORE, seen(0, 3, refused_at=0), review, seen(10, 2, refused_at=0))
    assert told(*looks, departures=departures) == [False, False, False, True]


def test_departures_of_one_are_not_those_of_another() -> None:
    departures, other = Departures(), ObjectKey("default", "other")
    assert told(BEFORE, seen(0, 3, refused_at=0), departures=departures) == [False, False]
    assert told(seen(0, 1, refused_at=0), departures=departures, key=other) == [True]
    assert told(seen(1, 3, refused_at=1), departures=departures) == [False]
