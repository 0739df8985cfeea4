"""Runtime: the running parts of the operator, wired together.

Owns the client, the elector with the term it leads, the webhook and the metrics endpoint; decides
nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from datetime import UTC, datetime

from aiohttp import web

from atom_operator import constants, endpoints
from atom_operator.cluster.applied import AppliedChildren
from atom_operator.cluster.cached import CachedCluster
from atom_operator.cluster.client import ApiCluster
from atom_operator.cluster.engine_backoff import EnginesWithBackoff
from atom_operator.cluster.engine_http import HttpEngines
from atom_operator.cluster.fenced import FencedCluster
from atom_operator.cluster.fleet import FleetReader
from atom_operator.cluster.informer import ALL, Informers, Scope, scopes_of
from atom_operator.cluster.known_deployments import KnownDeployments
from atom_operator.cluster.optional import OptionalKinds
from atom_operator.cluster.prometheus import HttpPrometheus
from atom_operator.cluster.watch_client import ApiWatch
from atom_operator.domain import (
    ATOM_DEPLOYMENT,
    ATOM_PROFILE,
    CHILD_KINDS,
    JOB,
    NAMESPACE,
    POD,
    ObjectKey,
)
from atom_operator.handlers.deployment_news import DeploymentNews
from atom_operator.handlers.deployments import DeploymentEvent, DeploymentHandlers
from atom_operator.handlers.leadership_session import LeadershipSession
from atom_operator.kinds import (
    AUTOSCALER_KINDS,
    HTTP_ROUTE,
    INFERENCE_POOL,
    LEADER_WORKER_SET,
    NETWORK_POLICY,
)
from atom_operator.leadership.leader_election import Elector
from atom_operator.leadership.lease import LeaseTimes
from atom_operator.leadership.lease_object import ApiLease
from atom_operator.leadership.rivals import Rival, Rivals
from atom_operator.metrics import OperatorMetrics
from atom_operator.page.page_reader import PageReader
from atom_operator.page.page_routes import add_page
from atom_operator.reconcile.decider import Decider
from atom_operator.reconcile.device_moves import DeviceMoves
from atom_operator.reconcile.failing_writes import FailingWrites
from atom_operator.reconcile.memories import Memories
from atom_operator.reconcile.nodes.group_places import GroupPlaces
from atom_operator.reconcile.profiles.profile_status import ProfileStatuses
from atom_operator.reconcile.profiles.profile_users import ProfileUsers
from atom_operator.reconcile.reconciler import Reconciler
from atom_operator.reconcile.rollout_train import RolloutTrain
from atom_operator.settings import LeaseSettings, OperatorSettings
from atom_operator.webhook.service import WebhookService

_logger = logging.getLogger(__name__)
# The kinds that informers follow, with the label by which an object names an AtomDeployment; other
# projects' kinds if they are served. AtomDeployments arrive through kopf: for them only the change
# counts.
_OTHERS_KINDS = (NETWORK_POLICY, LEADER_WORKER_SET, HTTP_ROUTE, INFERENCE_POOL)
FOLLOWED = {
    JOB: constants.LABEL_JOB_FOR,
    **dict.fromkeys(
        (*CHILD_KINDS, *_OTHERS_KINDS, *AUTOSCALER_KINDS, POD),
        constants.LABEL_DEPLOYMENT,
    ),
}
# What any AtomDeployment may depend on: AtomProfiles, and the labels of its namespace, which name
# one and open others to it.
_OF_ALL = (Scope(ATOM_PROFILE, None, ""), Scope(NAMESPACE, None, ""))
# Without the caches a term works too, at the price of many requests.
_CACHES_SECONDS = 30.0


def followed(namespaces: tuple[str, ...] = ()) -> tuple[Scope, ...]:
    """Return the scopes that informers follow; cluster-scoped objects only if it watches every
    namespace."""
    of_each = scopes_of(FOLLOWED, namespaces, quiet=AUTOSCALER_KINDS)
    return of_each if namespaces else (*of_each, *_OF_ALL)


class Runtime:
    """Started and stopped by the lifecycle, inside the process's event loop."""

    def __init__(self, settings: OperatorSettings) -> None:
        self.settings = settings
        self.metrics = OperatorMetrics()
        self._cluster = ApiCluster.connect(settings.namespaces, self.metrics.request)
        self._engines = HttpEngines()
        lease = settings.lease
        self._lease = _lease(lease) if lease else None
        self._elector = _elector(self._lease, lease.identity) if self._lease and lease else None
        self._watch = ApiWatch.connect(self.metrics.request)
        self._informers = Informers(
            self._watch,
            followed(settings.namespaces),
            self.enqueue,
            settings.resync_seconds,
        )
        self._known = KnownDeployments()
        self._news = DeploymentNews(self._known, self._look_at)
        self._handlers = DeploymentHandlers(
            settings.namespaces, self._hear, lambda: self._cluster.serves(ATOM_DEPLOYMENT)
        )
        cached = CachedCluster(self._cluster, self._informers, self._known)
        fenced = FencedCluster(cached, self._may_write)
        self._optional = OptionalKinds(self._cluster.list_holders)
        self._applied = AppliedChildren()
        self._train = RolloutTrain(
            settings.rollouts.most,
            lambda key: self.enqueue(*key),
            follows_defaults=settings.rollouts.follow_defaults,
        )
        self._moves = DeviceMoves()
        self._places = GroupPlaces()
        self._failing = FailingWrites()
        self._profile_users = ProfileUsers()
        self._profile_statuses = ProfileStatuses(fenced, self._profile_users)
        fleet = FleetReader(cached, time.monotonic)
        engines = EnginesWithBackoff(self._engines, time.monotonic)
        address = settings.site.addresses.prometheus
        self._prometheus = HttpPrometheus(address) if address else None
        self._decider = Decider(fenced, fleet, engines, settings, prometheus=self._prometheus)
        self._reconciler = Reconciler(
            fenced,
            engines,
            self._decider,
            clock=_now,
            memories=Memories(
                optional=self._optional,
                applied=self._applied,
                train=self._train,
                moves=self._moves,
                places=self._places,
                failing=self._failing,
                profile_users=self._profile_users,
            ),
            wake=lambda key: self.enqueue(*key),
        )
        self._session: LeadershipSession | None = None
        self.metrics.queue_length.set_function(lambda: len(self._session or ()))
        self.metrics.leader.set_function(lambda: float(self._session is not None))
        self._tasks: list[asyncio.Task[None]] = []
        self._served: list[web.AppRunner] = []

    async def start(self) -> None:
        """Begin to work; raises ClusterError when AtomDeployments cannot be listed."""
        await self._cluster.list_deployments()
        await self._serve(endpoints.health(self.check_alive), self.settings.endpoints.health_port)
        await self._serve(self._metrics_and_page(), self.settings.endpoints.metrics_port)
        elector = self._elector
        leading = self._lead() if elector is None else elector.run(self._lead)
        self._tasks = [asyncio.create_task(leading)]
        if self.settings.webhook is not None:
            service = WebhookService(
                self.settings.webhook,
                self._cluster,
                self._decider,
                count=self.metrics.review,
                clock=_now,
            )
            self._tasks.append(asyncio.create_task(service.run()))

    def _metrics_and_page(self) -> web.Application:
        application = endpoints.metrics(self.metrics.registry)
        if self.settings.endpoints.page:
            reader = PageReader(self._cluster, self.settings, time.monotonic)
            add_page(application, reader.document)
        return application

    async def _serve(self, application: web.Application, port: int) -> None:
        if port:
            self._served.append(await endpoints.serve(application, port))

    async def stop(self) -> None:
        """Stop after the requests in flight, and let another replica continue at once."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for runner in self._served:
            await runner.cleanup()
        await self._engines.close()
        if self._prometheus is not None:
            await self._prometheus.close()
        await self._cluster.close()
        await self._watch.close()
        if self._lease is not None:
            await self._lease.close()

    def enqueue(self, namespace: str, name: str) -> None:
        """Enqueue a changed AtomDeployment, or all that a changed namespace or AtomProfile
        concerns."""
        if self._session is None:
            return
        if not namespace:
            self._profile_users.hear(name)
            keys = self._profile_users.of_profile(name)
        elif name == ALL:
            keys = self._profile_users.of_namespace(namespace)
        else:
            keys = (ObjectKey(namespace, name),)
        for key in keys:
            self._session.add(key)

    def _hear(self, event: DeploymentEvent) -> None:
        """Handle a changed AtomDeployment. A canary's report is news to the AtomDeployment that it
        belongs to."""
        if self._session is not None and event.owner is not None:
            self._session.add(event.owner)
        self._news.hear(event)

    def _look_at(self, event: DeploymentEvent) -> None:
        """Queue an AtomDeployment; a spec that no status describes yet comes first."""
        if self._session is not None:
            self._session.add(event.key, urgent=event.is_unreported)

    def check_alive(self) -> int:
        """Return the length of the queue; raises when a loop has ended, which only a bug can
        cause."""
        for task in self._tasks:
            if task.done():
                raise RuntimeError("a loop of the operator has ended; see its log")
        return len(self._session or ())

    async def _lead(self) -> None:
        """Reconcile until cancelled, once no operator of another release does."""
        await self._wait_for_rivals()
        self._optional.forget_all()
        self._applied.forget_all()
        self._train.forget_all()
        self._moves.forget_all()
        self._places.forget_all()
        self._failing.forget_all()
        self._profile_users.forget_all()
        self._known.forget_all()
        self._session = LeadershipSession(
            self._reconcile,
            self._list_keys,
            workers=self.settings.workers,
            resync_seconds=self.settings.resync_seconds,
        )
        try:
            async with asyncio.TaskGroup() as tasks:
                watching = [
                    tasks.create_task(self._informers.run()),
                    tasks.create_task(self._handlers.run()),
                ]
                if not self.settings.namespaces:  # else it has no right to AtomProfiles
                    watching.append(tasks.create_task(self._profile_statuses.run()))
                try:
                    if not await self._informers.wait_tried(_CACHES_SECONDS):
                        _logger.warning("not everything is listed yet; reading without caches")
                    await self._session.run()
                finally:
                    for task in watching:
                        task.cancel()
        finally:
            self._session = None

    async def _wait_for_rivals(self) -> None:
        own, settings, elector = self._lease, self.settings.lease, self._elector
        if own is None or settings is None or elector is None:
            return
        name = f"{settings.namespace}/{settings.name}"

        def mine() -> Rival:
            record = elector.record
            assert record is not None, "a holder has seen its Lease"
            return Rival(name, record)

        namespaces = self.settings.namespaces
        rivals = Rivals(lambda: own.rivals(settings.cluster_namespace, namespaces), time.monotonic)
        await rivals.wait(mine, elector.tell)

    async def _list_keys(self) -> list[ObjectKey]:
        keys = await self._cluster.list_deployments()
        self._train.expect(keys)
        self._profile_users.expect(keys)
        return keys

    async def _reconcile(self, key: ObjectKey) -> float | None:
        with self.metrics.reconcile(), self._news.reconciling(key):
            outcome = await self._reconciler.reconcile(key)
        return outcome.requeue_after_seconds

    def _may_write(self) -> bool:
        return self._elector is None or self._elector.may_write()


def _lease(settings: LeaseSettings) -> ApiLease:
    of_some = settings.cluster_namespace is not None
    labels = {constants.LABEL_WATCHES: constants.WATCHES_NAMESPACES} if of_some else {}
    return ApiLease.connect(settings.namespace, settings.name, labels)


def _elector(lease: ApiLease, identity: str) -> Elector:
    return Elector(lease, identity, LeaseTimes(), monotonic=time.monotonic, clock=_now)


def _now() -> datetime:
    return datetime.now(UTC)
