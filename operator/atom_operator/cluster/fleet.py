"""FleetReader: nodes and placed pods, read when a decision needs them, shared for a few seconds.

Not watched: only a rollout or a pod without a node asks, so a quiet cluster costs no request, and a
thousand reconciles at once cost one list. Where the operator may not read nodes (it watches single
namespaces) there is no fleet, and decisions do without.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from atom_operator.cluster.errors import RefusedError
from atom_operator.cluster.port import ClusterPort
from atom_operator.domain import Manifest
from atom_operator.domain.placed_pods import PlacedPods, placed_pods

_logger = logging.getLogger(__name__)
_FRESH_SECONDS = 5.0
_KNOWN_SECONDS = 60.0
_FORBIDDEN_SECONDS = 300.0
_T = TypeVar("_T")


class FleetReader:
    """Reads the nodes and the pods of the cluster; `monotonic` is a clock in seconds."""

    def __init__(self, port: ClusterPort, monotonic: Callable[[], float]) -> None:
        async def summed() -> PlacedPods:
            return placed_pods(await port.list_placed_pods())

        self._nodes = _Shared(port.list_nodes, "nodes", monotonic)
        self._pods = _Shared(summed, "pods of all namespaces", monotonic)

    async def nodes(self) -> list[Manifest] | None:
        """List every node; None where reading them is forbidden."""
        return await self._nodes.read(_FRESH_SECONDS)

    async def known_nodes(self) -> list[Manifest] | None:
        """Read every node, up to a minute old: for what hardly changes (which devices there are),
        and for what is asked on behalf of many objects all the time (an autoscaler's bound). None
        where reading them is forbidden."""
        return await self._nodes.read(_KNOWN_SECONDS)

    async def pods(self) -> PlacedPods | None:
        """Sum every pod on a node; None where reading them is forbidden."""
        return await self._pods.read(_FRESH_SECONDS)

    async def nodes_now(self) -> list[Manifest] | None:
        """Read every node as it is after this call: for what takes something from users, which no
        older picture than what was observed beside it may decide. None where it is forbidden."""
        return await self._nodes.read(0.0)

    async def pods_now(self) -> PlacedPods | None:
        """Read every pod on a node as it is after this call."""
        return await self._pods.read(0.0)

    async def known_pods(self) -> PlacedPods | None:
        """Sum every pod on a node, up to a minute old."""
        return await self._pods.read(_KNOWN_SECONDS)


class _Shared(Generic[_T]):
    """One list and its age; concurrent readers wait for the same request."""

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
        """Read it, or take the last answer: one that was asked for at most so long before this
        call, or by another while this one waited."""
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
