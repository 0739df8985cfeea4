"""What a reconcile has read, and what we wrote ourselves, is no news; everything else is."""

from __future__ import annotations

from typing import Any

from atom_operator.cluster.cached import CachedCluster
from atom_operator.cluster.informer import Informers
from atom_operator.cluster.known_deployments import KnownDeployments
from atom_operator.domain import ATOM_DEPLOYMENT
from atom_operator.handlers.deployment_news import DeploymentNews
from atom_operator.handlers.deployments import DeploymentEvent
from tests.support.operator.builders_operator import KEY, atom_deployment
from tests.support.operator.fake_cluster import FakeCluster
from tests.support.operator.fake_watch import FakeWatch


class World:
    """A cluster, read as a reconcile reads it."""

    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self.cluster.create(ATOM_DEPLOYMENT, atom_deployment())
        self.known = KnownDeployments()
        informers = Informers(FakeWatch(self.cluster), (), lambda _, __: None, 300.0)
        self.port = CachedCluster(self.cluster, informers, self.known)

    def shown(self) -> dict[str, Any]:
        return self.cluster.objects[ATOM_DEPLOYMENT, *KEY]

    def is_news(self) -> bool:
        return self.known.is_news(KEY, str(self.shown()["metadata"]["resourceVersion"]))


async def test_what_nobody_has_read_is_news_and_what_was_read_is_none() -> None:
    world = World()
    assert world.is_news()
    await world.port.get(ATOM_DEPLOYMENT, *KEY)
    assert not world.is_news()
    world.cluster.change_spec(ATOM_DEPLOYMENT, "chat", replicas=3)
    assert world.is_news()
    await world.port.get(ATOM_DEPLOYMENT, *KEY)
    assert not world.is_news()


async def test_a_version_that_comes_late_is_no_news() -> None:
    world = World()
    late = str(world.shown()["metadata"]["resourceVersion"])
    world.cluster.change_spec(ATOM_DEPLOYMENT, "chat", replicas=3)
    await world.port.get(ATOM_DEPLOYMENT, *KEY)
    assert not world.known.is_news(KEY, late)


async def test_an_event_that_comes_during_a_reconcile_is_judged_at_its_end() -> None:
    world, told = World(), list[str]()
    news = DeploymentNews(world.known, lambda event: told.append(event.version))
    with news.reconciling(KEY):
        await world.port.get(ATOM_DEPLOYMENT, *KEY)
        own = await world.cluster.apply_status(KEY, {"observedGeneration": 1})
        assert own is not None
        news.hear(DeploymentEvent.of(own))  # faster than the answer
        world.known.reported(own)
        world.cluster.change_spec(ATOM_DEPLOYMENT, "chat", replicas=3)
        news.hear(DeploymentEvent.of(world.shown()))
        assert told == []
    assert told == [world.shown()["metadata"]["resourceVersion"]]


async def test_our_own_status_is_no_news_and_another_client_s_is() -> None:
    world = World()
    await world.port.get(ATOM_DEPLOYMENT, *KEY)
    await world.port.apply_status(KEY, {"observedGeneration": 1})
    assert not world.is_news()
    await world.cluster.apply_status(KEY, {"observedGeneration": 0})
    assert world.is_news()


async def test_a_change_between_our_look_and_our_write_is_news() -> None:
    for change in ("spec", "labels", "deletion"):
        world = World()
        await world.port.get(ATOM_DEPLOYMENT, *KEY)
        if change == "spec":
            world.cluster.change_spec(ATOM_DEPLOYMENT, "chat", replicas=3)
        elif change == "labels":
            world.shown()["metadata"]["labels"] = {"team": "other"}
            world.cluster.touch(world.shown())
        else:
            world.shown()["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z"
            world.cluster.touch(world.shown())
        await world.port.apply_status(KEY, {"observedGeneration": 1})
        assert world.is_news(), change


async def test_a_namesake_of_what_is_gone_is_news() -> None:
    world = World()
    await world.port.get(ATOM_DEPLOYMENT, *KEY)
    version = str(world.shown()["metadata"]["resourceVersion"])
    del world.cluster.objects[ATOM_DEPLOYMENT, *KEY]
    await world.port.get(ATOM_DEPLOYMENT, *KEY)
    assert world.known.is_news(KEY, version)


async def test_a_cluster_that_was_put_back_is_believed_when_it_is_read() -> None:
    world = World()
    await world.port.get(ATOM_DEPLOYMENT, *KEY)
    world.shown()["metadata"]["resourceVersion"] = "0"
    await world.port.get(ATOM_DEPLOYMENT, *KEY)
    assert world.known.is_news(KEY, "1")


async def test_nothing_of_an_earlier_term_is_known() -> None:
    world = World()
    await world.port.get(ATOM_DEPLOYMENT, *KEY)
    world.known.forget_all()
    assert world.is_news()
