"""The status of an AtomProfile counts the AtomDeployments that take it and those that wait to, and
is written when a count changes and not before all of them were looked at."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from atom_operator.domain import ATOM_DEPLOYMENT, ATOM_PROFILE, ObjectKey
from atom_operator.reconcile.profiles.profile_status import ProfileStatuses
from atom_operator.reconcile.profiles.profile_users import ProfileUsers
from tests.support.operator.fake_cluster import FakeCluster
from tests.support.operator_life.fleet import CAUSES, Fleet, fleet, profile

_A_TURN, _FAILS = 400, 4000  # seconds, as in test_defaults_of_many.py
_PROFILES = ("a", "b", "default")


class Counted:
    """Statuses of profiles beside a fleet's operator."""

    def __init__(self, made: Fleet) -> None:
        self.made = made
        self.users = made.operator.reconciler.memories.profile_users
        self.statuses = ProfileStatuses(made.cluster.api, self.users)
        self.seen: list[dict[str, int]] = []
        made.cluster.clients.append(self.look)

    def look(self) -> None:
        self.made.operator.loop.run_until_complete(self.statuses.write())
        if not self.seen or self.seen[-1] != self.status:
            self.seen.append(dict(self.status))

    @property
    def status(self) -> dict[str, int]:
        found = self.made.cluster.api.find(ATOM_PROFILE, "default", "")
        return dict(found.get("status") or {})

    @property
    def writes(self) -> int:
        return sum("AtomProfile" in write for write in self.made.cluster.api.writes)


@contextmanager
def counted() -> Iterator[Counted]:
    with fleet(profiles={"default": profile("x")}) as made:
        found = Counted(made)
        made.cluster.advance(30)
        yield found


def _edit(found: Counted, *, good: bool) -> None:
    CAUSES["a profile is edited"].change(found.made, good)
    found.made.cluster.advance(30)


def test_a_train_empties_the_count_of_those_that_wait() -> None:
    with counted() as found:
        assert found.status == {"deployments": 6, "waiting": 0}
        _edit(found, good=True)
        assert found.status == {"deployments": 6, "waiting": 5}
        found.made.cluster.advance(6 * _A_TURN)
        waiting = [status["waiting"] for status in found.seen]
        assert waiting[-6:] == [5, 4, 3, 2, 1, 0]
        assert found.writes == len(found.seen)


def test_those_that_are_spared_a_bad_change_are_counted_as_waiting() -> None:
    with counted() as found:
        _edit(found, good=False)
        found.made.cluster.advance(_FAILS)
        assert found.status == {"deployments": 6, "waiting": 5}


def test_one_that_is_deleted_or_takes_another_profile_counts_no_more() -> None:
    with counted() as found:
        made = found.made
        made.cluster.state.remove(ATOM_DEPLOYMENT, made.cluster.api.find(ATOM_DEPLOYMENT, "m0"))
        made.cluster.advance(30)
        assert found.status["deployments"] == 5
        made.put_profile(**profile("y"), name="other")
        made.cluster.api.change_spec(ATOM_DEPLOYMENT, "m1", profile="other")
        made.cluster.advance(30)
        assert found.status["deployments"] == 4


@pytest.mark.parametrize("seed", range(40))
def test_counts_are_those_of_any_order_of_events(seed: int) -> None:
    chance, users, cluster = random.Random(seed), ProfileUsers(), FakeCluster()
    statuses = ProfileStatuses(cluster, users)
    for name in _PROFILES:
        left = {"deployments": 9, "waiting": 3}  # of a term before
        metadata = {"name": name, "namespace": ""}
        cluster.create(ATOM_PROFILE, {"metadata": metadata, "spec": {}, "status": left})
    cluster.writes.clear()
    keys = [ObjectKey(f"n{number % 3}", f"m{number}") for number in range(12)]
    takes: dict[ObjectKey, str] = {}
    waits: set[ObjectKey] = set()

    def happens(key: ObjectKey) -> None:
        match chance.choice(("note", "note", "wait", "forget")):
            case "note":
                name = chance.choice((*_PROFILES, "missing"))
                if takes.get(key) != name:
                    waits.discard(key)
                takes[key] = name
                users.note(key, name)
            case "wait":
                waiting = chance.random() < 0.5
                users.note_waiting(key, waits=waiting)
                if key in takes:
                    (waits.add if waiting else waits.discard)(key)
            case "forget":
                takes.pop(key, None)
                waits.discard(key)
                users.forget(key)

    asyncio.run(statuses.write())
    assert cluster.writes == []  # nothing is listed yet
    users.expect(keys)
    for key in keys[1:]:
        happens(key)
    for key in keys[2:]:
        users.note(key, takes.setdefault(key, "a"))
    asyncio.run(statuses.write())
    assert cluster.writes == [], "one of them was not looked at"
    for key in keys[:2]:
        users.note(key, takes.setdefault(key, "b"))
    for _ in range(30):
        asyncio.run(statuses.write())
        before = len(cluster.writes)
        for name in _PROFILES:
            status = cluster.find(ATOM_PROFILE, name, "")["status"]
            of = {key for key, taken in takes.items() if taken == name}
            assert status == {"deployments": len(of), "waiting": len(of & waits)}
        asyncio.run(statuses.write())
        assert len(cluster.writes) == before, "a status that is there already is not written"
        happens(chance.choice(keys))
        if chance.random() < 0.2:  # somebody makes a profile anew
            name = chance.choice(_PROFILES)
            cluster.create(ATOM_PROFILE, {"metadata": {"name": name, "namespace": ""}, "spec": {}})
            users.hear(name)
