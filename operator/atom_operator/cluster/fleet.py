"""FleetReader: nodes and placed pods, read when a decision needs them, shared for a few seconds.

Not watched: a rollout or a pod without a node asks, and at rest each resync asks for the nodes of
pods that have devices; a thousand reconciles at once cost one list, which leaves out the pods that
informers follow anyway. If the operator may not read nodes (it watches single namespaces) there is
no fleet, and decisions are made without it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Generic, TypeVar

from atom_operator.cluster.errors import RefusedError
from atom_operator.cluster.port import ClusterPort
from atom_operator.domain.devices import DevicePicture, device_picture
from atom_operator.domain.nodes import Nodes
from atom_operator.domain.placed_pods import PlacedPods, placed_pods
from atom_operator.kinds import DEVICE_CLASS, RESOURCE_CLAIM, RESOURCE_SLICE

_logger = logging.getLogger(__name__)
_OF_DEVICES = (RESOURCE_SLICE, RESOURCE_CLAIM, DEVICE_CLASS)
_FORBIDDEN_SECONDS = 300.0
_T = TypeVar("_T")


class Age(Enum):
    """Seconds before the call at which a picture may have been asked for, at most."""

    NOW = 0.0  # for decisions that take something from users: no older than the pods' observation
    RECENT = 5.0
    # For facts that hardly change (the devices), and for reads on behalf of many objects all the
    # time (an autoscaler's bound).
    KNOWN = 60.0


class FleetReader:
    """Reads the nodes and the pods of the cluster; `monotonic` is a clock in seconds."""

    def __init__(self, port: ClusterPort, monotonic: Callable[[], float]) -> None:
        async def listed() -> Nodes:
            return Nodes(await port.list_nodes())

        async def summed() -> PlacedPods:
            return placed_pods(await port.list_placed_pods())

        async def pictured() -> DevicePicture:
            found = [await port.list_everywhere(kind) or () for kind in _OF_DEVICES]
            return device_picture(*found)

        self._devices = _Shared(pictured, "ResourceSlices and ResourceClaims", monotonic)
        self._nodes = _Shared(listed, "nodes", monotonic)
        self._pods = _Shared(summed, "pods of all namespaces", monotonic)

    async def nodes(self, age: Age = Age.RECENT) -> Nodes | None:
        """List every node; None where reading them is forbidden."""
        return await self._nodes.read(age.value)

    async def devices(self, age: Age = Age.RECENT) -> DevicePicture | None:
        """Read the devices that claims are given; None where reading them is forbidden."""
        return await self._devices.read(age.value)

    async def pods(self, age: Age = Age.RECENT) -> PlacedPods | None:
        """Sum every pod on a node; None where reading them is forbidden."""
        return await self._pods.read(age.value)


class _Shared(Generic[_T]):
    """Share one list between readers, with its age; concurrent readers wait for the same
    request."""

    def __init__(
        self,
        read: Callable[[], Awaitable[_T]],
        what: str,
        monotonic: Callable[[], float],
    ) -> None:
        self._read = read
        self._what = what
        self._monotonic = monotonic
        self._lock = asyncio.Lock()
        self._value: _T | None = None
        self._read_at = float("-inf")

    async def read(self, fresh_seconds: float) -> _T | None:
        """Read the list, or return the last answer if it was requested at most `fresh_seconds`
        before this call, or while this call waited."""
        asked_at = self._monotonic()
        async with self._lock:
            fresh = _FORBIDDEN_SECONDS if self._value is None else fresh_seconds
            if self._read_at > asked_at - fresh:
                return self._value
            started = self._monotonic()
            try:
                self._value = await self._read()
            except RefusedError as error:
                _logger.info(
                    "%s cannot be read, so free devices are unknown: %s", self._what, error
                )
                self._value = None
            self._read_at = started
            return self._value
