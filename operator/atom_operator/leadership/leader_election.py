"""Elector: holds the Lease when it can, and runs `lead` exactly while it does.

Every replica runs one. A holder that cannot renew, or whose process was frozen, stops `lead` before
the Lease runs out for the others; `may_write` closes at the same moment, for what a stopped event
loop cannot cancel. A graceful end releases the Lease, so that the next replica starts at once.
Knows nothing of what `lead` does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime

from atom_operator.cluster.errors import ClusterError
from atom_operator.leadership import lease
from atom_operator.leadership.lease import LeaseRecord, LeaseTimes, Sighting
from atom_operator.leadership.lease_object import LeasePort

_logger = logging.getLogger(__name__)
_RELEASE_SECONDS = 3.0


class Elector:
    """Acquires and renews the Lease; `monotonic` is this process's clock in seconds; `clock` gives
    the times people read."""

    def __init__(
        self,
        port: LeasePort,
        identity: str,
        times: LeaseTimes,
        *,
        monotonic: Callable[[], float],
        clock: Callable[[], datetime],
    ) -> None:
        self.identity = identity
        self._port = port
        self._times = times
        self._monotonic = monotonic
        self._clock = clock
        self._sighting: Sighting | None = None
        self._held_until = float("-inf")
        self._reconciles: bool | None = None  # None: as the holder before had it

    @property
    def record(self) -> LeaseRecord | None:
        """Return the Lease as it was seen last."""
        return self._sighting.record if self._sighting else None

    def tell(self, reconciles: bool) -> None:
        """Let the Lease say from its next renewal on whether its holder reconciles."""
        self._reconciles = reconciles

    def may_write(self) -> bool:
        """Return whether this process certainly is the only one that reconciles."""
        return self._monotonic() < self._held_until

    async def run(self, lead: Callable[[], Awaitable[None]]) -> None:
        """Wait for the Lease, run `lead` while it is held, and again, until cancelled.

        `lead` runs until it is cancelled; its errors end this too.
        """
        while True:
            await self._acquire()
            _logger.info("%s holds the Lease and reconciles", self.identity)
            leading = asyncio.ensure_future(lead())
            try:
                await self._keep(leading)
            finally:
                leading.cancel()
                await asyncio.wait([leading])
                await self._release()
            if not leading.cancelled():
                leading.result()

    async def _acquire(self) -> None:
        holder = None
        while not await self._try():
            record = self._sighting.record if self._sighting else None
            if record is not None and record.holder != holder:
                holder = record.holder
                _logger.info("waits for the Lease, which %s holds", holder or "nobody")
            await asyncio.sleep(self._seconds_to_next_try())

    def _seconds_to_next_try(self) -> float:
        retry = self._times.retry_seconds
        if self._sighting is None:
            return retry
        return min(retry, max(0.05, self._sighting.expires() - self._monotonic()))

    async def _keep(self, leading: asyncio.Future[None]) -> None:
        """Renew until the Lease is lost, or `leading` has ended by itself."""
        while self.may_write():
            done, _ = await asyncio.wait([leading], timeout=self._times.retry_seconds)
            if done:
                return
            await self._try()
        _logger.warning("%s lost the Lease and stops reconciling", self.identity)

    async def _try(self) -> bool:
        """Try once to take or renew the Lease, within the time that is left of it."""
        left = self._held_until - self._monotonic()
        seconds = left if left > 0 else self._times.renew_seconds
        try:
            async with asyncio.timeout(seconds):
                return await self._take()
        except TimeoutError:
            _logger.warning("the Lease: no answer for %.1f s", seconds)
        except ClusterError as error:
            _logger.warning("the Lease: %s", error)
        return False

    async def _take(self) -> bool:
        record = await self._port.read()
        if record is None:
            started = self._monotonic()
            self._held(await self._port.create(self._first()), started)
            return True
        self._sighting = lease.look(self._sighting, record, self._monotonic())
        if not lease.may_take(self._sighting, self.identity, self._monotonic()):
            self._held_until = float("-inf")
            return False
        # From before the request: the others count from when they see it.
        started = self._monotonic()
        renewed = lease.taken(record, self.identity, self._times, self._clock())
        if self._reconciles is not None:
            renewed = replace(renewed, reconciles=self._reconciles)
        self._held(await self._port.write(renewed), started)
        return True

    def _first(self) -> LeaseRecord:
        return lease.first(self.identity, self._times, self._clock())

    def _held(self, record: LeaseRecord, started: float) -> None:
        self._sighting = lease.look(self._sighting, record, self._monotonic())
        self._held_until = started + self._times.renew_seconds

    async def _release(self) -> None:
        """Let go of a Lease that is still ours; failing that, the others wait until it expires."""
        still_ours = self.may_write()
        self._held_until = float("-inf")
        self._reconciles = None
        if not still_ours or self._sighting is None:
            return
        try:
            async with asyncio.timeout(_RELEASE_SECONDS):
                await self._port.write(lease.released(self._sighting.record, self._clock()))
        except (ClusterError, TimeoutError) as error:
            _logger.warning("the Lease could not be released: %s", error)
        else:
            _logger.info("%s released the Lease", self.identity)
