"""FakeWatch: a WatchPort over a FakeCluster, as late and as forgetful as a test wants it.

Watches hear of changes when `announce` is called, and never of those before `lose`; `break_watches`
and `expire` end them as a network and an API server do. One that is opened again begins with what
was announced since its version.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from atom_operator.cluster.errors import (
    ClusterError,
    ExpiredError,
    TransientError,
    UnservedError,
)
from atom_operator.cluster.informer import Change, Listing, Scope
from atom_operator.cluster.object_cache import StoredObject
from atom_operator.domain import Manifest
from atom_operator.kinds import Kind
from tests.support.operator.fake_cluster import FakeCluster

_Name = tuple[str, str]


@dataclass
class _Watch:
    scope: Scope
    queue: asyncio.Queue[Change | ClusterError | None] = field(default_factory=asyncio.Queue)


@dataclass
class FakeWatch:
    """`lists` and `opened` count; while `refuses` is set no watch opens."""

    cluster: FakeCluster
    lists: list[Scope] = field(default_factory=list)
    opened: list[Scope] = field(default_factory=list)
    refuses: ClusterError | None = None
    _history: dict[Scope, list[Change]] = field(default_factory=dict)
    _told: dict[Scope, dict[_Name, Manifest]] = field(default_factory=dict)
    _watches: list[_Watch] = field(default_factory=list)

    async def list_scope(self, scope: Scope) -> Listing:
        self.lists.append(scope)
        self._check_served(scope)
        self._note(scope)
        items = self._told[scope].values()
        return Listing(tuple(StoredObject.of(item) for item in items), self.cluster.version())

    @asynccontextmanager
    async def watch_scope(
        self, scope: Scope, since: str, seconds: float
    ) -> AsyncIterator[AsyncIterator[Change]]:
        if self.refuses is not None:
            raise self.refuses
        self._check_served(scope)
        self.opened.append(scope)
        watch = _Watch(scope)
        for change in self._history.get(scope, ()):
            if int(change.version) > int(since):
                watch.queue.put_nowait(change)
        self._watches.append(watch)
        try:
            yield _changes(watch, seconds)
        finally:
            self._watches.remove(watch)

    def announce(self) -> None:
        """Everybody who watches, or will, hears what has changed since the last time."""
        for scope in self._told:
            changes = self._note(scope)
            self._history.setdefault(scope, []).extend(changes)
            for watch in self._watches:
                if watch.scope == scope:
                    for change in changes:
                        watch.queue.put_nowait(change)

    def lose(self) -> None:
        """What has changed will be announced to nobody."""
        for scope in self._told:
            self._note(scope)

    def break_watches(self) -> None:
        for watch in self._watches:
            watch.queue.put_nowait(TransientError("the connection broke"))

    def end_watches(self) -> None:
        for watch in self._watches:
            watch.queue.put_nowait(None)

    def expire(self) -> None:
        for watch in self._watches:
            watch.queue.put_nowait(ExpiredError("too old resource version"))

    def remove_crd(self, kind: Kind) -> None:
        """Whoever has the right deletes it, and its objects with it."""
        for key in [key for key in self.cluster.objects if key[0] == kind]:
            del self.cluster.objects[key]
        self.announce()
        self.cluster.unserved_kinds.add(kind)
        for watch in self._watches:
            if watch.scope.kind == kind:
                watch.queue.put_nowait(None)

    def _check_served(self, scope: Scope) -> None:
        if scope.kind in self.cluster.unserved_kinds:
            raise UnservedError(f"list {scope.kind.kind}: 404 Not Found")

    def _note(self, scope: Scope) -> list[Change]:
        """What differs from what was told before, which it now counts as."""
        before = self._told.get(scope, {})
        now = {
            (item["metadata"]["namespace"], item["metadata"]["name"]): item
            for item in self._in(scope)
        }
        changes = []
        for name, item in now.items():
            if name in before and _content(before[name]) == _content(item):
                continue
            if _version(item) in ("", _version(before.get(name))):
                self.cluster.touch(item)  # a test changed or put it there by hand
            changes.append(_change("PUT", item))
        for name in before.keys() - now.keys():
            gone = copy.deepcopy(before[name])
            self.cluster.touch(gone)
            changes.append(_change("DELETED", gone))
        self._told[scope] = {name: copy.deepcopy(item) for name, item in now.items()}
        return changes

    def _in(self, scope: Scope) -> Iterator[Manifest]:
        for (kind, namespace, _), item in self.cluster.objects.items():
            labelled = not scope.label or scope.label in (item["metadata"].get("labels") or {})
            if kind == scope.kind and labelled and scope.namespace in (None, namespace):
                yield item


async def _changes(watch: _Watch, seconds: float) -> AsyncIterator[Change]:
    try:
        async with asyncio.timeout(seconds):
            while True:
                found = await watch.queue.get()
                if isinstance(found, ClusterError):
                    raise found
                if found is None:
                    return
                yield found
    except TimeoutError:
        return


def _change(what: str, item: Manifest) -> Change:
    found = StoredObject.of(item)
    return Change("DELETED" if what == "DELETED" else "PUT", found.version, found)


def _version(item: Manifest | None) -> str:
    return str(item["metadata"].get("resourceVersion", "")) if item else ""


def _content(item: Manifest) -> Manifest:
    kept = {name: value for name, value in item.items() if name != "metadata"}
    metadata = item["metadata"]
    return {**kept, "metadata": {k: v for k, v in metadata.items() if k != "resourceVersion"}}
