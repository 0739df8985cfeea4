"""A FakeCluster behind informers, as the operator's reconciler sees a real one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from atom_operator.cluster.cached import CachedCluster
from atom_operator.cluster.informer import Informers, Scope
from atom_operator.cluster.known_deployments import KnownDeployments
from atom_operator.cluster.port import ClusterPort
from atom_operator.domain import ATOM_DEPLOYMENT
from atom_operator.handlers.deployment_news import DeploymentNews
from atom_operator.handlers.deployments import DeploymentEvent
from atom_operator.handlers.runtime import followed as followed_scopes
from tests.support.operator.fake_cluster import FakeCluster
from tests.support.operator.fake_watch import FakeWatch
from tests.support.waiting import HANG_SECONDS

_DEPLOYMENTS = Scope(ATOM_DEPLOYMENT, None, "")


@dataclass
class Followed:
    """`port` is what to reconcile with; `announced` names who should be reconciled, and so is
    `wake` told, with whether it is urgent."""

    cluster: FakeCluster
    watch: FakeWatch
    port: ClusterPort
    news: DeploymentNews
    announced: list[str] = field(default_factory=list)
    wake: Callable[[str, bool], None] = lambda _name, _urgent: None

    async def tell(self) -> None:
        """The watches deliver everything up to now."""
        self.watch.announce()
        for _ in range(3):  # turns of the loop, in which the informers take it in
            await asyncio.sleep(0)


@asynccontextmanager
async def followed(
    cluster: FakeCluster, behind: ClusterPort | None = None
) -> AsyncIterator[Followed]:
    """Informers of `cluster`; requests go to `behind` where that is something else."""
    watch = FakeWatch(cluster)

    def announce(name: str, urgent: bool) -> None:
        world.announced.append(name)
        world.wake(name, urgent)

    informers = Informers(
        watch, followed_scopes(), lambda _, name: announce(name, False), period_seconds=300.0
    )
    known = KnownDeployments()
    news = DeploymentNews(known, lambda event: announce(event.key.name, event.is_unreported))
    port = CachedCluster(behind or cluster, informers, known)
    world = Followed(cluster, watch, port, news)

    async def hear() -> None:
        """As kopf's handler does."""
        listing = await watch.list_scope(_DEPLOYMENTS)
        async with watch.watch_scope(_DEPLOYMENTS, listing.version, HANG_SECONDS) as changes:
            async for change in changes:
                assert change.item is not None
                news.hear(DeploymentEvent.of(change.item.manifest()))

    tasks = [asyncio.create_task(informers.run()), asyncio.create_task(hear())]
    try:
        assert await informers.wait_tried(HANG_SECONDS)
        world.announced.clear()
        yield world
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
