"""A changed default of many AtomDeployments is taken by one after the other, and by no more of them
once it could not become ready in one; whoever waits says for whom, or where it failed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from atom_operator.domain import DEPLOYMENT as _DEPLOYMENT
from tests.support.in_memory_cluster.state import is_ready
from tests.support.operator_life.fleet import CAUSES, GOOD_IMAGE, TYPO_IMAGE, Fleet, fleet, profile

_A_TURN = 400  # seconds that one rollout takes at most
_FAILS = 4000  # seconds until one is given up and rolled back
_NIGHT = {"window": {"start": "22:00", "minutes": 60}}  # the cluster's clock begins in the morning
_CANARY = {
    "canary": {
        "change": {"engine": {"maxNumSeqs": 64}},
        "steps": [{"weight": 10, "seconds": 60}],
        "decision": "Hold",
    },
    "gateway": {"httpRoute": {"parentRefs": [{"name": "gate"}]}},
}
# What one of the models is beside the others, by its spec.
SITUATIONS: dict[str, Mapping[str, Any]] = {
    "alike": {},
    "one has a window": {"rollout": _NIGHT},
    "one has a canary": _CANARY,
    "one is suspended": {"suspend": True},
    "one has two replicas": {"parallelism": {"tensor": 4}, "replicas": 2},
}
_PAIRS = [
    (cause, good, situation)
    for number, cause in enumerate(CAUSES)
    for good in (True, False)
    for place, situation in enumerate(SITUATIONS)
    if (place + number + good) % len(SITUATIONS) == 0
    if good or cause not in ("a profile is taken away", "a newer operator renders otherwise")
]


def change(made: Fleet, cause: str, *, good: bool) -> None:
    CAUSES[cause].change(made, good)
    made.cluster.advance(30)


def test_a_profile_of_six_full_nodes_goes_from_one_to_the_next() -> None:
    with fleet(profiles={"default": profile("x")}) as made:
        change(made, "a profile is edited", good=True)
        said = [made.waits(name) for name in made.names]
        assert said[0] == ""
        assert "AtomProfile default (" in said[1]
        assert "number 1 of 5 that wait, after default/m0" in said[1]
        assert "number 5 of 5 that wait, after default/m0, default/m1" in said[5]
        assert made.said("m5", "Ready")["status"] == "True"
        made.cluster.advance(6 * _A_TURN)
        assert made.most_away == 1
        assert made.replaced == set(made.names)
        assert not any(made.waits(name) for name in made.names)


def test_a_bad_profile_is_taken_by_one_and_another_edit_begins_anew() -> None:
    with fleet(models=4, profiles={"default": profile("x")}) as made:
        change(made, "a profile is edited", good=False)
        made.cluster.advance(_FAILS)
        assert made.was_away == made.replaced == {"m0"}
        assert set(made.uids()) == set(made.names)
        assert "could not become ready in default/m0" in made.waits("m3")
        assert "could not become ready in default/m0" in made.said("m3", "Progressing")["message"]
        made.operator.restart()  # which remembers nothing
        made.cluster.advance(_A_TURN)
        assert made.was_away == {"m0"}
        made.put_profile(**profile("z"))
        made.cluster.advance(4 * _A_TURN)
        assert made.most_away == 1
        assert made.replaced == set(made.names)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("cause", "good", "situation"), _PAIRS)
def test_a_change_for_many_takes_one_away_at_a_time(cause: str, good: bool, situation: str) -> None:
    """Four of them; the second is as the situation says."""
    found = CAUSES[cause]
    profiles = found.profiles
    with fleet(models=4, spare=1, specs={"m1": SITUATIONS[situation]}, profiles=profiles) as made:
        assert len(made.before) == 4 - (situation == "one is suspended")
        change(made, cause, good=good)
        made.cluster.advance(4 * _A_TURN if good else _FAILS)
        assert made.most_away <= 1
        if not found.rolls:
            assert not made.was_away
        elif good:
            waits = {"m1"} if situation == "one has a window" else set()
            assert made.replaced == set(made.before) - waits, {n: made.waits(n) for n in made.names}
        else:
            assert len(made.was_away) <= 1
            assert len(made.replaced) <= 1
            assert set(made.uids()) == set(made.before)


@pytest.mark.sampled(2)
@pytest.mark.singles
@pytest.mark.parametrize("cause", [name for name, each in CAUSES.items() if each.rolls])
def test_a_default_that_waits_for_a_window_is_named(cause: str) -> None:
    with fleet(
        models=1, specs={"m0": {"rollout": _NIGHT}}, profiles=CAUSES[cause].profiles
    ) as made:
        change(made, cause, good=True)
        waits = made.waits("m0")
        assert CAUSES[cause].told in waits
        assert waits.endswith("): spec.rollout.window opens at 2026-01-02T22:00Z")
        assert made.said("m0", "Progressing")["message"].endswith(f"; {waits}")
        assert made.said("m0", "Ready")["status"] == "True"


@pytest.mark.sampled(1)
@pytest.mark.singles
@pytest.mark.parametrize("cause", ["a profile is edited", "the default image is another"])
@pytest.mark.parametrize("good", [True, False])
def test_groups_of_pods_take_it_in_turn(cause: str, good: bool) -> None:
    group = {"parallelism": {"tensor": 16, "nodes": 2}}
    specs = {f"m{number}": group for number in range(3)}
    with fleet(models=3, nodes=2, specs=specs, profiles=CAUSES[cause].profiles) as made:
        change(made, cause, good=good)
        made.cluster.advance(3 * _A_TURN if good else _FAILS)
        assert made.most_away <= 1
        assert len(made.replaced) == (3 if good else len(made.was_away))
        assert set(made.uids()) == set(made.before)


def test_a_change_of_its_own_goes_before_defaults_and_is_not_stopped_by_them() -> None:
    with fleet(models=4, profiles={"default": profile("x")}) as made:
        change(made, "a profile is edited", good=False)
        made.ask("m3", engine={"image": GOOD_IMAGE})
        made.cluster.advance(30)
        assert "number 1 of 3 that wait, after default/m0" in made.waits("m3")
        assert made.said("m3", "Progressing")["reason"] == "RolloutWaits"
        made.cluster.advance(_FAILS)
        assert made.was_away <= {"m0", "m3"}
        assert made.replaced <= {"m0", "m3"}
        assert not made.waits("m3")


# A neighbour that does not go on, by what its team does; and the seconds that others wait for it.
STUCK = {
    "paused": 30,
    "without room for a spare pod, and never rolled back": _FAILS,
    "suspended on the way": 60,
    "deleted on the way": 60,
    "an image that is not there, and never rolled back": _FAILS,
    "an image that is not there": _FAILS,
}


def _get_stuck(made: Fleet, how: str) -> None:
    engine = {"image": TYPO_IMAGE if "image" in how else GOOD_IMAGE}
    rollback = {"autoRollback": False} if "never" in how else {}
    if how == "paused":
        made.cluster.api.objects[_DEPLOYMENT, "default", "m0"]["spec"]["paused"] = True
        made.api.touch(made.cluster.api.objects[_DEPLOYMENT, "default", "m0"])
        made.cluster.advance(30)
    strategy = {"strategy": "Surge"} if "spare pod" in how else {}
    made.ask("m0", engine=engine, rollout={**rollback, **strategy})
    made.cluster.advance(20)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("how", STUCK)
def test_a_neighbour_that_does_not_go_on_holds_nobody(how: str) -> None:
    with fleet(models=3) as made:
        _get_stuck(made, how)
        for name in ("m1", "m2"):
            made.ask(name, engine={"maxNumSeqs": 64})
        made.cluster.advance(20)
        if how != "paused":
            assert "after default/m0" in made.waits("m1")
        if how == "suspended on the way":
            made.ask("m0", suspend=True)
        if how == "deleted on the way":
            made.api.remove_with_children("m0")
        made.cluster.advance(STUCK[how] + 3 * _A_TURN)
        assert {"m1", "m2"} <= made.replaced, {name: made.waits(name) for name in ("m1", "m2")}
        assert all(is_ready(pod) for pod in made.cluster.serving("m2"))
