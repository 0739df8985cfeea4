"""LeadershipSession: one stretch of reconciling, from taking the Lease to losing it.

Owns the queue, its workers and the resync; a new term begins with an empty queue and a look at
every AtomDeployment, so nothing depends on an earlier holder. Run by the elector.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from atom_operator.cluster.errors import ClusterError
from atom_operator.domain import ObjectKey
from atom_operator.workqueue import Handler, WorkQueue

_logger = logging.getLogger(__name__)
_LIST_RETRY_SECONDS = 2.0


class LeadershipSession:
    """A leadership session. `list_keys` names every AtomDeployment; `reconcile` handles one of
    them."""

    def __init__(
        self,
        reconcile: Handler[ObjectKey],
        list_keys: Callable[[], Awaitable[list[ObjectKey]]],
        *,
        workers: int,
        resync_seconds: float,
    ) -> None:
        self._queue: WorkQueue[ObjectKey] = WorkQueue(self._look, expected=ClusterError)
        self._reconcile = reconcile
        self._list_keys = list_keys
        self._workers = workers
        self._resync_seconds = resync_seconds
        self._coming: set[ObjectKey] = set()  # whose next look is due within a period by itself

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, key: ObjectKey, *, urgent: bool = False) -> None:
        """Add an AtomDeployment that changed, or whose children did; urgent: a spec that no status
        describes yet."""
        self._queue.add(key, urgent=urgent)

    async def run(self) -> None:
        """Reconcile until cancelled; after that nothing of it runs any more."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(self._workers):
                    tasks.create_task(self._queue.work())
                tasks.create_task(self._resync())
        finally:
            self._queue.close()

    async def _look(self, key: ObjectKey) -> float | None:
        self._coming.discard(key)
        again = await self._reconcile(key)
        if again is not None and again <= self._resync_seconds:
            self._coming.add(key)
        return again

    async def _resync(self) -> None:
        """Look at everything at first and periodically: for changes without events, and lost
        events.

        New keys are added at once and the rest one by one, so that a change never queues behind all
        the others. Keys that are looked at as often anyway are left out.
        """
        known: set[ObjectKey] = set()
        while True:
            keys = await self._list()
            seen = [key for key in keys if key in known]
            for key in keys:
                if key not in known:
                    self._queue.add(key)
            for key in seen:
                if key not in self._coming:
                    self._queue.add(key)
                await asyncio.sleep(self._resync_seconds / len(seen))
            if not seen:
                await asyncio.sleep(self._resync_seconds)
            known = set(keys)

    async def _list(self) -> list[ObjectKey]:
        while True:
            try:
                return await self._list_keys()
            except ClusterError as error:
                retry = _LIST_RETRY_SECONDS
                _logger.warning("resync: %s; again in %gs", error, retry)
                await asyncio.sleep(retry)
