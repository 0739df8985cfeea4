"""FaultyCluster: a ClusterPort that misbehaves as an API server or a dying operator does.

In front of a FakeCluster. Writes are counted from 1: after number `kill_after` the process is dead,
numbers in `errors` are answered with that error instead. `stale` answers reads in the cluster's
place, as a cache would that missed the latest changes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from atom_operator.cluster.errors import ClusterError
from tests.support.operator.fake_cluster import FakeCluster


class Killed(BaseException):
    """SIGKILL: nothing that catches errors catches this."""


@dataclass
class FaultyCluster:
    """`writes` counts all attempts. Whatever neither gets, lists nor only tries is a write."""

    inner: FakeCluster
    kill_after: int | None = None
    errors: Mapping[int, ClusterError] = field(default_factory=dict)
    stale: FakeCluster | None = None
    writes: int = 0

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("get", "list", "dry_run")):
            return getattr(self.stale or self.inner, name)
        return self._write(getattr(self.inner, name))

    def _write(self, method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def write(*arguments: Any) -> Any:
            self.writes += 1
            if self.writes in self.errors:
                raise self.errors[self.writes]
            result = await method(*arguments)
            if self.writes == self.kill_after:
                raise Killed
            return result

        return write
