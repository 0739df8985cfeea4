"""Rivals: operators of other releases that would reconcile the same objects, and the wait for them.

A release for the whole cluster and each one that watches single namespaces have separate Leases, so
two of them would lead, and undo each other's writes for ever. The second therefore waits: for a
Lease whose holder reports that it reconciles, and, if neither does yet, for the Lease that was
taken first. A Lease that no longer changes has no holder, as among replicas. Called by the runtime
with the Leases that it can read; knows nothing of the work that it delays.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from atom_operator.cluster.errors import RefusedError, TransientError
from atom_operator.leadership import lease
from atom_operator.leadership.lease import LeaseRecord, Sighting

_logger = logging.getLogger(__name__)
# Within which a replica takes the Lease of one of its release that ended or was killed.
_FAILOVER_SECONDS = 15.0
_NEVER = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Rival:
    """Hold the Lease of another release, by namespace and name, and the namespaces that both watch,
    if it does not watch all of ours."""

    name: str
    record: LeaseRecord
    shared: tuple[str, ...] = ()


class Rivals:
    """Waits for other releases; `read` gives the Leases as they are now; `monotonic` is a clock in
    seconds."""

    def __init__(
        self,
        read: Callable[[], Awaitable[Sequence[Rival]]],
        monotonic: Callable[[], float],
        retry_seconds: float = 5.0,
    ) -> None:
        self._read = read
        self._monotonic = monotonic
        self._retry_seconds = retry_seconds
        self._seen: dict[str, Sighting] = {}

    async def wait(self, mine: Callable[[], Rival], tell: Callable[[bool], None]) -> None:
        """Wait until no other release reconciles. `tell` records in our own Lease whether we
        reconcile: if there is another release, it is recorded for a while before this returns, so
        that neither misses the other."""
        said, told = False, ""
        while True:
            found = await self._look()
            if found is not None:
                first = next((item for item in found if _goes_before(item, mine())), None)
                if first is None and (said or not found):
                    tell(True)
                    return
                said = first is None
                tell(said)
                why = _reason(first) if first is not None else ""
                if why and why != told:
                    _logger.error("%s", why)
                told = why
            await asyncio.sleep(self._retry_seconds)

    async def _look(self) -> list[Rival] | None:
        """List the rivals that may be at work; None if the Leases could not be read."""
        try:
            found = await self._read()
        except RefusedError as error:
            _logger.warning("Leases of other releases cannot be read, so none counts: %s", error)
            return []
        except TransientError as error:
            _logger.warning("Leases of other releases: %s", error)
            return None
        now = self._monotonic()
        self._seen = {
            item.name: lease.look(self._seen.get(item.name), item.record, now) for item in found
        }
        return [item for item in found if self._may_work(item, now)]

    def _may_work(self, rival: Rival, now: float) -> bool:
        """Return whether the rival has a holder, or another replica of it may be about to take
        over."""
        record = rival.record
        if not (record.holder or record.reconciles):
            return False
        return now < self._seen[rival.name].expires() + _FAILOVER_SECONDS


def _goes_before(rival: Rival, mine: Rival) -> bool:
    if rival.record.reconciles != mine.record.reconciles:
        return rival.record.reconciles
    return _order(rival) < _order(mine)


def _order(rival: Rival) -> tuple[datetime, str]:
    return rival.record.acquired or _NEVER, rival.name


def _reason(rival: Rival) -> str:
    what = "namespaces that this one watches too"
    if rival.shared:
        what = f"{', '.join(rival.shared)}, and so does this one"
    return (
        f"nothing is reconciled: the release of Lease {rival.name} watches {what}. "
        "Uninstall one of them, or give each namespaces of its own (watchNamespaces)"
    )
