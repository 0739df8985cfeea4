"""A new default image belongs to every AtomDeployment that names none, and still goes to one after
the other: to the next when the one before serves, and to nobody once it has failed."""

from __future__ import annotations

from typing import Any

from atom_operator.cluster.fleet import FleetReader
from atom_operator.domain import ATOM_DEPLOYMENT, DEPLOYMENT, ObjectKey
from atom_operator.reconcile.decider import Decider
from atom_operator.reconcile.memories import Memories
from atom_operator.reconcile.reconciler import Reconciler
from atom_operator.reconcile.rollout_train import RolloutTrain
from atom_operator.settings import OperatorSettings
from tests.support.in_memory_cluster.rollouts import finish_rollout
from tests.support.operator.builders_operator import NOW, atom_deployment
from tests.support.operator.fake_cluster import FakeCluster
from tests.support.operator.fake_engines import FakeEngines

OLD, NEW, FIXED = "registry.test/atom:1", "registry.test/atom:2", "registry.test/atom:3"
KEYS = [ObjectKey("default", f"model-{number}") for number in range(4)]


class Fleet:
    """Some AtomDeployments and the operator of one default image; `asked` is its queue."""

    def __init__(self, **changes: Any) -> None:
        self.cluster = FakeCluster()
        for key in KEYS:
            self.cluster.create(ATOM_DEPLOYMENT, atom_deployment(key.name, **changes))
        self.asked: list[ObjectKey] = []
        self.start(OLD)

    def start(self, image: str, most: int = 1, *, follows: bool = True) -> None:
        """A process that remembers nothing begins its term."""
        settings = OperatorSettings(engine_images={"cpu": image})
        engines, fleet = FakeEngines(), FleetReader(self.cluster, lambda: 0.0)
        decider = Decider(self.cluster, fleet, engines, settings)
        train = RolloutTrain(most, self.asked.append, follows_defaults=follows)
        train.expect(KEYS)
        self.operator = Reconciler(
            self.cluster, engines, decider, lambda: NOW, memories=Memories(train=train)
        )

    async def look(self, keys: list[ObjectKey] | None = None) -> None:
        """At every AtomDeployment, and then at those that were announced."""
        for key in KEYS if keys is None else keys:
            await self.operator.reconcile(key)
        while self.asked:
            await self.operator.reconcile(self.asked.pop(0))

    async def serve(self, key: ObjectKey) -> None:
        """The rollout of one of them comes to its end."""
        finish_rollout(self.cluster, key.name)
        await self.look([key])

    async def fail(self, key: ObjectKey) -> None:
        finish_rollout(self.cluster, key.name, ready=1)
        status = self.cluster.find(DEPLOYMENT, key.name)["status"]
        late = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}
        status["conditions"] = [{**late, "message": "timed out"}]
        status["updatedReplicas"] = 0
        await self.look([key])

    def images(self) -> list[str]:
        found = (self.cluster.find(DEPLOYMENT, key.name) for key in KEYS)
        return [item["spec"]["template"]["spec"]["containers"][0]["image"] for item in found]

    def message(self, key: ObjectKey) -> str:
        conditions = self.cluster.find(ATOM_DEPLOYMENT, key.name)["status"]["conditions"]
        return str(next(item for item in conditions if item["type"] == "Progressing")["message"])


async def serving(**changes: Any) -> Fleet:
    fleet = Fleet(**changes)
    await fleet.look()
    for key in KEYS:
        await fleet.serve(key)
    return fleet


async def test_one_after_the_other_takes_it() -> None:
    fleet = await serving()
    fleet.start(NEW)
    await fleet.look()
    for taken in range(1, len(KEYS) + 1):
        assert fleet.images().count(NEW) == taken
        (rolling,) = [
            key
            for key, image in zip(KEYS, fleet.images(), strict=True)
            if image == NEW and "1 of 1 replicas are rolled out" not in fleet.message(key)
        ]
        await fleet.serve(rolling)
    assert fleet.images() == [NEW] * len(KEYS)


async def test_who_waits_says_so_and_is_ready_all_the_same() -> None:
    fleet = await serving()
    fleet.start(NEW)
    await fleet.look()
    await fleet.look()
    (waiting, *_) = [key for key, image in zip(KEYS, fleet.images(), strict=True) if image == OLD]
    assert NEW in fleet.message(waiting)
    assert "number 1 of 3 that wait, after default/model-" in fleet.message(waiting)
    status = fleet.cluster.find(ATOM_DEPLOYMENT, waiting.name)["status"]
    assert status["conditions"][-1]["status"] == "True"


async def test_an_image_that_fails_once_goes_to_nobody_else() -> None:
    fleet = await serving()
    fleet.start(NEW)
    await fleet.look()
    (first,) = [key for key, image in zip(KEYS, fleet.images(), strict=True) if image == NEW]
    await fleet.fail(first)
    await fleet.serve(first)  # what was ready before, again
    await fleet.look()
    assert fleet.images() == [OLD] * len(KEYS)
    others = [key for key in KEYS if key != first]
    assert f"could not become ready in default/{first.name}" in fleet.message(others[0])
    fleet.start(NEW)
    await fleet.look()
    assert fleet.images() == [OLD] * len(KEYS), "a new process knows it too"
    fleet.start(FIXED, most=4)
    await fleet.look()
    assert fleet.images() == [FIXED] * len(KEYS)


async def test_a_new_process_in_the_middle_does_not_begin_another() -> None:
    fleet = await serving()
    fleet.start(NEW)
    await fleet.look()
    rolling = [key for key, image in zip(KEYS, fleet.images(), strict=True) if image == NEW]
    fleet.start(NEW)
    await fleet.look([*(key for key in KEYS if key not in rolling), *rolling])
    assert fleet.images().count(NEW) == 1


async def test_none_takes_it_by_itself_where_the_site_says_so() -> None:
    fleet = await serving()
    fleet.start(NEW, follows=False)
    await fleet.look()
    assert fleet.images() == [OLD] * len(KEYS)
    changed = KEYS[2]
    fleet.cluster.change_spec(ATOM_DEPLOYMENT, changed.name, engine={"maxModelLen": 1024})
    await fleet.look()
    assert fleet.images() == [OLD, OLD, NEW, OLD]


async def test_what_concerns_no_pod_does_not_take_it() -> None:
    fleet = await serving()
    fleet.start(NEW, follows=False)
    fleet.cluster.change_spec(ATOM_DEPLOYMENT, KEYS[0].name, replicas=2)
    await fleet.look()
    assert fleet.images() == [OLD] * len(KEYS)


async def test_where_nothing_serves_there_is_nothing_to_wait_for() -> None:
    fleet = Fleet()
    await fleet.look()
    fleet.start(NEW)
    await fleet.look()
    assert fleet.images() == [NEW] * len(KEYS)


async def test_a_waiting_fleet_is_at_rest() -> None:
    fleet = await serving()
    fleet.start(NEW)
    await fleet.look()
    await fleet.look()  # each knows its place now
    fleet.cluster.writes.clear()
    await fleet.look()
    assert fleet.cluster.writes == []
