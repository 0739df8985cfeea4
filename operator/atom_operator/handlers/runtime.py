"""Runtime: the running parts of the operator, wired together. Handed to every handler as `memo`.

Owns the client, the queue with its workers, the resync loop and the metrics endpoint; decides
nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from datetime import UTC, datetime

from prometheus_client import start_http_server

from atom_operator.cluster.client import LightkubeCluster
from atom_operator.cluster.engine_http import HttpEngines
from atom_operator.cluster.errors import ClusterError
from atom_operator.cluster.fleet import FleetReader
from atom_operator.domain import ObjectKey
from atom_operator.metrics import OperatorMetrics
from atom_operator.reconcile import Reconciler
from atom_operator.settings import OperatorSettings
from atom_operator.workqueue import WorkQueue

_logger = logging.getLogger(__name__)


class Runtime:
    """Started and stopped by the lifecycle handlers, inside kopf's event loop."""

    def __init__(self, settings: OperatorSettings) -> None:
        self.settings = settings
        self.metrics = OperatorMetrics()
        self._cluster = LightkubeCluster.connect(settings.namespaces)
        self._engines = HttpEngines()
        self._reconciler = Reconciler(
            self._cluster,
            FleetReader(self._cluster, time.monotonic),
            self._engines,
            settings,
            clock=lambda: datetime.now(UTC),
        )
        self._queue: WorkQueue[ObjectKey] = WorkQueue(self._reconcile, expected=ClusterError)
        self.metrics.queue_length.set_function(lambda: len(self._queue))
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Begin to work; raises ClusterError when AtomDeployments cannot be listed."""
        await self._cluster.list_deployments()
        if self.settings.metrics_port:
            start_http_server(self.settings.metrics_port, registry=self.metrics.registry)
        loops = [self._queue.work() for _ in range(self.settings.workers)]
        self._tasks = [asyncio.create_task(loop) for loop in (*loops, self._resync())]

    async def stop(self) -> None:
        """Stop after the requests in flight."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._queue.close()
        await self._engines.close()
        await self._cluster.close()

    def enqueue(self, namespace: str | None, name: str | None) -> None:
        """Something about this AtomDeployment or its children changed."""
        if namespace and name:
            self._queue.add(ObjectKey(namespace, name))

    def check_alive(self) -> int:
        """Length of the queue; raises when a loop has ended, which only a bug can cause."""
        for task in self._tasks:
            if task.done():
                raise RuntimeError("a loop of the operator has ended; see its log")
        return len(self._queue)

    async def _reconcile(self, key: ObjectKey) -> float | None:
        with self.metrics.reconcile():
            outcome = await self._reconciler.reconcile(key)
        return outcome.requeue_after_seconds

    async def _resync(self) -> None:
        """Look at everything now and then: what no event announces, and events that were lost."""
        while True:
            await asyncio.sleep(self.settings.resync_seconds)
            try:
                keys = await self._cluster.list_deployments()
            except ClusterError as error:
                _logger.warning("resync: %s; again in %gs", error, self.settings.resync_seconds)
                continue
            for key in keys:
                self._queue.add(key)
