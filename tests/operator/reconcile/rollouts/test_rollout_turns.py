"""When a rollout may begin: in its window and in its turn, and what is said until then."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from atom_operator.api.v1alpha1.rollout import RolloutSpec
from atom_operator.domain import ATOM_DEPLOYMENT, DEPLOYMENT, POD, ObjectKey
from atom_operator.reconcile.requeue import requeue_after as requeue_after
from atom_operator.reconcile.rollout_train import RolloutTrain
from atom_operator.reconcile.rollout_turn import window_of, window_wait
from atom_operator.reconcile.rollout_window import opens_at
from tests.support.in_memory_cluster.rollouts import finish_rollout, own_pods
from tests.support.operator.builders_operator import (
    atom_deployment,
    cluster_with,
    condition,
    reconciler,
)
from tests.support.operator.fake_cluster import FakeCluster

KEYS = [ObjectKey("default", name) for name in ("chat", "code", "search")]
FRIDAY_NOON = datetime(2026, 1, 2, 12, 0, tzinfo=UTC)
NIGHTS = {"days": ["Fri"], "start": "22:00", "minutes": 240, "timeZone": "Europe/Berlin"}
OLD, NEW = {"image": "registry.test/atom:1"}, {"image": "registry.test/atom:2"}


def window(**changes: Any) -> Any:
    return window_of(RolloutSpec.model_validate({"window": {**NIGHTS, **changes}}))


@pytest.mark.parametrize(
    ("now", "opens"),
    [
        ("2026-01-02T12:00", "2026-01-02T21:00"),  # Berlin is an hour ahead in winter
        ("2026-01-02T21:00", None),
        ("2026-01-03T00:59", None),  # and it lasts past midnight
        ("2026-01-03T01:00", "2026-01-09T21:00"),
        ("2026-07-03T12:00", "2026-07-03T20:00"),  # two hours in summer
    ],
)
def test_a_window_opens_by_the_clock_of_its_zone(now: str, opens: str | None) -> None:
    found = opens_at(window(), datetime.fromisoformat(f"{now}+00:00"))
    assert found == (None if opens is None else datetime.fromisoformat(f"{opens}+00:00"))


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/St_Johns", "Pacific/Kiritimati"])
def test_every_week_has_each_window_once_for_its_length(zone: str) -> None:
    """Also in the weeks in which a clock is set forward or back."""
    asked = window(days=["Sun"], start="02:30", minutes=90, timeZone=zone)
    hour, opened = datetime(2026, 3, 1, tzinfo=UTC), 0
    for _ in range(36 * 7 * 48):
        opened += opens_at(asked, hour) is None
        hour += timedelta(minutes=30)
    assert opened == 36 * 3


class Fleet:
    """Three AtomDeployments that serve, and an operator with a clock and a budget."""

    def __init__(self, most: int = 0, **rollout: Any) -> None:
        self.cluster, self.now = FakeCluster(), FRIDAY_NOON
        self.woken: list[ObjectKey] = []
        self.train = RolloutTrain(most, self.woken.append)
        self.train.expect(KEYS)
        for key in KEYS:
            manifest = atom_deployment(key.name, engine=OLD, rollout=rollout)
            self.cluster.create(ATOM_DEPLOYMENT, manifest)
        for _ in range(2):
            for key in KEYS:
                self.look(key)
                finish_rollout(self.cluster, key.name)
        for key in KEYS:
            self.look(key)

    def look(self, key: ObjectKey) -> float | None:
        one = reconciler(self.cluster, self.now)
        object.__setattr__(one.memories, "train", self.train)
        return asyncio.run(one.reconcile(key)).requeue_after_seconds

    def ask(self, key: ObjectKey, **changes: Any) -> float | None:
        self.cluster.change_spec(ATOM_DEPLOYMENT, key.name, **{"engine": NEW, **changes})
        return self.look(key)

    def image(self, key: ObjectKey) -> str:
        workload = self.cluster.find(DEPLOYMENT, key.name)
        return str(workload["spec"]["template"]["spec"]["containers"][0]["image"])

    def said(self, key: ObjectKey) -> dict[str, Any]:
        status = self.cluster.find(ATOM_DEPLOYMENT, key.name)["status"]
        return {item["type"]: item for item in status["conditions"]}


def test_what_serves_stays_until_the_window_opens_and_the_rest_counts_at_once() -> None:
    fleet, chat = Fleet(window=NIGHTS), KEYS[0]
    again = fleet.ask(chat, replicas=2)
    assert fleet.image(chat) == OLD["image"]
    assert fleet.cluster.find(DEPLOYMENT, "chat")["spec"]["replicas"] == 2
    finish_rollout(fleet.cluster)
    again = fleet.look(chat)
    said = fleet.said(chat)
    assert said["Progressing"]["reason"] == said["Ready"]["reason"] == "RolloutWaits"
    assert "opens at 2026-01-02T21:00Z" in said["Progressing"]["message"]
    # Every request is served, and nobody has to act: whoever waits for the object goes on.
    assert said["Available"]["status"] == said["Ready"]["status"] == "True"
    assert not {"Reconciling", "Stalled"} & {*said}
    written = len(fleet.cluster.writes)
    fleet.look(chat)
    assert len(fleet.cluster.writes) == written  # at rest nothing is written
    assert again is not None
    fleet.now += timedelta(seconds=again)  # when it asked to be called again
    while fleet.now < datetime(2026, 1, 2, 21, 0, tzinfo=UTC):
        again = fleet.look(chat)
        assert fleet.image(chat) == OLD["image"]
        assert again is not None
        fleet.now += timedelta(seconds=again)
    fleet.look(chat)
    assert fleet.image(chat) == NEW["image"]
    fleet.now += timedelta(hours=5)  # what has begun goes on
    finish_rollout(fleet.cluster)
    fleet.look(chat)
    assert fleet.said(chat)["Ready"]["status"] == "True"


@pytest.mark.parametrize("orphaned", [True, False])
def test_pods_whose_workload_was_deleted_wait_for_the_window_while_they_serve(
    orphaned: bool,
) -> None:
    fleet, chat = Fleet(window=NIGHTS), KEYS[0]
    del fleet.cluster.objects[DEPLOYMENT, "default", "chat"]
    for pod in own_pods(fleet.cluster) if not orphaned else ():
        del fleet.cluster.objects[POD, "default", pod["metadata"]["name"]]
    fleet.ask(chat)
    assert fleet.image(chat) == (OLD if orphaned else NEW)["image"]


@pytest.mark.parametrize("urgent", [True, False])
def test_what_is_urgent_begins_at_once(urgent: bool) -> None:
    fleet, chat = Fleet(most=1, window=NIGHTS), KEYS[0]
    fleet.ask(chat, rollout={"window": NIGHTS, "urgent": urgent})
    assert fleet.image(chat) == (NEW if urgent else OLD)["image"]


def test_so_many_roll_at_a_time_and_the_others_know_their_place() -> None:
    fleet = Fleet(most=1)
    for key in KEYS:
        fleet.ask(key)
    assert [fleet.image(key) for key in KEYS] == [NEW["image"], OLD["image"], OLD["image"]]
    fleet.look(KEYS[2])
    fleet.look(KEYS[1])  # who looks first gains nothing
    assert "number 1 of 2 that wait" in fleet.said(KEYS[1])["Progressing"]["message"]
    assert "number 2 of 2 that wait" in fleet.said(KEYS[2])["Progressing"]["message"]
    fleet.woken.clear()
    finish_rollout(fleet.cluster, "chat")
    fleet.look(KEYS[0])
    assert fleet.woken == [KEYS[1]]
    fleet.look(KEYS[2])
    assert fleet.image(KEYS[2]) == OLD["image"]
    fleet.look(KEYS[1])
    assert fleet.image(KEYS[1]) == NEW["image"]


def test_another_operator_first_looks_at_all_of_them() -> None:
    fleet = Fleet(most=1)
    fleet.ask(KEYS[0])
    fleet.train = RolloutTrain(1)
    fleet.train.expect(KEYS)
    fleet.ask(KEYS[1])
    assert fleet.image(KEYS[1]) == OLD["image"]
    for key in (KEYS[0], KEYS[2], KEYS[1]):
        fleet.look(key)
    assert fleet.image(KEYS[1]) == OLD["image"]  # the first still rolls
    finish_rollout(fleet.cluster, "chat")
    fleet.look(KEYS[0])
    fleet.look(KEYS[1])
    assert fleet.image(KEYS[1]) == NEW["image"]


def test_who_withdraws_leaves_the_row() -> None:
    fleet = Fleet(most=1)
    for key in KEYS:
        fleet.ask(key)
    fleet.ask(KEYS[1], engine=OLD)
    fleet.look(KEYS[2])
    assert "number 1 of 1 that wait" in fleet.said(KEYS[2])["Progressing"]["message"]


def test_a_zone_that_nobody_knows_is_refused_by_name() -> None:
    cluster = cluster_with(rollout={"window": {**NIGHTS, "timeZone": "Europe/Nowhere"}})
    asyncio.run(reconciler(cluster).reconcile(KEYS[0]))
    found = condition(cluster, "Accepted")
    assert "spec.rollout.window.timeZone" in found["message"]
    assert window_wait(RolloutSpec(), FRIDAY_NOON) is None
