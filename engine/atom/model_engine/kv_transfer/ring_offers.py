"""RingOffers: the memory that a producer offers to consumers in its welcomes, one ring for each.

Each transport with memory passes it in its own way: `ipc` by a handle of the device's memory
(DeviceMemory), `shm` by a descriptor (MemoryOffers), `nixl` by an address that other machines read
(NixlAgent). Belongs to the side channel's thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from atom.model_engine.kv_transfer.frames import OnDevice, Welcome
from atom.model_engine.kv_transfer.greeting import IPC, NIXL, SHM
from atom.model_engine.kv_transfer.memory_offers import MOST_OFFERS, MemoryOffers
from atom.model_engine.kv_transfer.nixl_agent import NixlAgent
from atom.model_engine.kv_transfer.page_ring import DeviceRing, HostRing, PageRing
from atom.model_engine.page_access import DeviceMemory


@dataclass(frozen=True, slots=True)
class Movers:
    """The means of this engine by which pages move outside frames; None without one."""

    nixl: NixlAgent | None = None
    device: DeviceMemory | None = None


@dataclass(frozen=True, slots=True)
class _Offered:
    """A ring, and the means by which it is withdrawn: a key of `shm`, or NIXL's descriptors."""

    ring: PageRing
    key: str = ""
    registered: Any = None


class RingOffers:
    """Offer rings. most_page_bytes: of one page."""

    def __init__(self, transports: Iterable[str], most_page_bytes: int, movers: Movers) -> None:
        """transports: that this engine may use."""
        self._memory = MemoryOffers(most_page_bytes) if SHM in transports else None
        self._nixl = movers.nixl
        self._device = movers.device if IPC in transports else None
        self._most_page_bytes = most_page_bytes
        self._offered: dict[int, _Offered] = {}  # by link

    @property
    def transports(self) -> frozenset[str]:
        """Return the transports by which another ring may be offered now."""
        if len(self._offered) >= MOST_OFFERS:
            return frozenset()
        means = {IPC: self._device, SHM: self._memory, NIXL: self._nixl}
        return frozenset(name for name, mean in means.items() if mean is not None)

    def offer(self, link: int, welcome: Welcome) -> Welcome:
        """Return a welcome with a ring for this consumer, if its transport has one. Raises
        `OSError` if there is no memory."""
        if welcome.transport == IPC and self._device is not None:
            device = DeviceRing(self._device, self._most_page_bytes)
            self._offered[link] = _Offered(device)
            own = device.range.handle, device.range.size, self._device.device_name
            return msgspec.structs.replace(welcome, on_device=OnDevice(*own))
        if welcome.transport == SHM and self._memory is not None:
            key, ring = self._memory.offer()
            self._offered[link] = _Offered(ring, key=key)
            return msgspec.structs.replace(welcome, memory=self._memory.name, key=key)
        if welcome.transport == NIXL and self._nixl is not None:
            ring = HostRing(self._most_page_bytes)
            try:
                registered, descriptors = self._nixl.offer(ring)
            except OSError:
                ring.close()
                raise
            self._offered[link] = _Offered(ring, registered=descriptors)
            return msgspec.structs.replace(welcome, registered=registered)
        return welcome

    def ring_of(self, link: int) -> PageRing | None:
        """Return the ring of a consumer, or None."""
        offered = self._offered.get(link)
        return None if offered is None else offered.ring

    def withdraw(self, link: int) -> None:
        """Drop the ring of a consumer that is gone."""
        offered = self._offered.pop(link, None)
        if offered is None:
            return
        if offered.key and self._memory is not None:
            self._memory.withdraw(offered.key)
            return
        if offered.registered is not None and self._nixl is not None:
            self._nixl.withdraw(offered.registered)
        offered.ring.close()

    async def serve(self) -> None:
        """Hand descriptors out until the task is cancelled."""
        if self._memory is not None:
            await self._memory.serve()

    def close(self) -> None:
        """Withdraw every ring."""
        for link in list(self._offered):
            self.withdraw(link)
        if self._memory is not None:
            self._memory.close()
