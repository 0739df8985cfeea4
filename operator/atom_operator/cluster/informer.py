"""Informers: list, then watch, so that an ObjectCache follows the API server.

The field's pattern (client-go: reflector and informer), with two additions: everything is listed
again once per period, so that a watch that loses an event costs a period at most; and an informer
reports whether its cache is current, which holds only while its watch is open. An event about an
object that we are writing is announced only if the write's answer does not cover it: watches are
often the faster of the two. A kind of another project's CRD that is not installed rests until it
is: a list that finds the kind served, or the next period, starts it again. Runs for one term. Knows
no HTTP (WatchPort) and no queue (`announce`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass
from typing import Literal, Protocol

from atom_operator.cluster.errors import ClusterError, ExpiredError, UnservedError
from atom_operator.cluster.object_cache import ObjectCache, StoredObject, is_newer
from atom_operator.domain import ATOM_PROFILE, NAMESPACE, Manifest
from atom_operator.kinds import PROVIDERS, Kind

_logger = logging.getLogger(__name__)
_FIRST_PAUSE_SECONDS = 0.5
_LAST_PAUSE_SECONDS = 30.0
_MAY_LACK = frozenset({*PROVIDERS, ATOM_PROFILE})  # kinds without which a cluster does
_LEAST_WATCH_SECONDS = 1.0  # an API server that ends every watch at once is left alone
# Of the period: informers that begin together spread their lists.
_SPREAD = 0.25


# Told the namespace and name of an AtomDeployment that should be looked at, which is ALL for every
# one of a namespace that has changed; of an AtomProfile, which belongs to none, the namespace is
# empty.
ALL = "*"
Announce = Callable[[str, str], None]


@dataclass(frozen=True, slots=True)
class Scope:
    """Select objects of one kind that name an AtomDeployment in `label`, or themselves if it is
    empty. In all namespaces if `namespace` is None. Changes in a scope that does not wake are
    cached, and not announced."""

    kind: Kind
    namespace: str | None
    label: str
    wakes: bool = True

    def deployment_of(self, item: StoredObject) -> str | None:
        """Name the AtomDeployment that an object of this scope refers to."""
        if self.kind == NAMESPACE:
            return ALL
        if not self.label:
            return item.name
        return dict(item.labels).get(self.label)


@dataclass(frozen=True, slots=True)
class Listing:
    """Every object of a scope at one version of the cluster."""

    items: tuple[StoredObject, ...]
    version: str


@dataclass(frozen=True, slots=True)
class Change:
    """Hold one event of a watch. A bookmark has no item: it only reports the watch's version."""

    what: Literal["PUT", "DELETED", "BOOKMARK"]
    version: str
    item: StoredObject | None = None


class WatchPort(Protocol):
    """List and watch one scope. Both raise ClusterError; ExpiredError if a version is too old to
    continue from, and UnservedError if the cluster does not serve the kind."""

    async def list_scope(self, scope: Scope) -> Listing:
        """List the whole scope, as new as the cluster is."""

    def watch_scope(
        self, scope: Scope, since: str, seconds: float
    ) -> AbstractAsyncContextManager[AsyncIterator[Change]]:
        """Yield the changes after the version `since`, in order; ends by itself after `seconds`."""


class Informer:
    """Keep a cache of one scope current; `announce` is called for every change except those by
    `keep`."""

    def __init__(
        self, port: WatchPort, scope: Scope, announce: Announce, period_seconds: float
    ) -> None:
        self.cache = ObjectCache()
        self.scope = scope
        self._port = port
        self._announce = announce
        self._period_seconds = period_seconds
        self._version = ""
        self._list_due = float("-inf")
        self._is_current = self._rests = False
        self._held_back: dict[tuple[str, str], list[StoredObject]] = {}  # of written objects
        self._tried = asyncio.Event()
        self._served = asyncio.Event()
        self._pause_seconds = _FIRST_PAUSE_SECONDS

    @property
    def is_current(self) -> bool:
        """Return whether the cache matches the API server, apart from a moment's delay."""
        return self._is_current

    @property
    def is_unserved(self) -> bool:
        """Return whether the cluster has lacked the kind since the last try, and so any object."""
        return self._rests

    async def wait_tried(self) -> None:
        """Wait until the cache is current, or until the first attempt has failed."""
        await self._tried.wait()

    def notice_served(self) -> None:
        """End the rest of a kind whose objects were listed: it is served."""
        self._served.set()

    @contextmanager
    def writing(self, namespace: str, name: str) -> Iterator[None]:
        """Hold back the watch's events about an object while we write it; afterwards announce those
        that `keep` or `drop` has not made old, or all if the write failed."""
        place = (namespace, name)
        if place in self._held_back:  # two at once: the first announces
            yield
            return
        self._held_back[place] = []
        try:
            yield
        finally:
            self._tell(self._held_back.pop(place))

    def keep(self, manifest: Manifest) -> None:
        """Cache the API server's answer to our own write, so that the watch's event about it is no
        news."""
        label = self.scope.label
        if not label or label in (manifest["metadata"].get("labels") or {}):
            answer = StoredObject.of(manifest)
            self.cache.put(answer)
            held = self._held_back.get((answer.namespace, answer.name), [])
            held[:] = [item for item in held if is_newer(item.version, answer.version)]

    def drop(self, namespace: str, name: str) -> None:
        """Remove an object that the API server has deleted at our request: no news either."""
        self.cache.forget(namespace, name)
        self._held_back.get((namespace, name), []).clear()

    async def run(self) -> None:
        """Keep the cache current until cancelled; it is empty afterwards."""
        try:
            while True:
                try:
                    await self._list_if_due()
                    if await self._watch() >= _LEAST_WATCH_SECONDS:
                        continue  # ended as it was asked to: believed until it is open again
                except ClusterError as error:
                    if isinstance(error, ExpiredError | UnservedError):
                        self._list_due = float("-inf")
                    _logger.info("watch of %s: %s", self.scope.kind.kind, error)
                    if isinstance(error, UnservedError) and self.scope.kind in _MAY_LACK:
                        await self._rest()
                        continue
                self._is_current = False
                self._tried.set()
                await asyncio.sleep(self._pause_seconds)
                self._pause_seconds = min(2 * self._pause_seconds, _LAST_PAUSE_SECONDS)
        finally:
            self._is_current, self._list_due = False, float("-inf")
            self._tried.clear()
            self.cache.clear()

    async def _rest(self) -> None:
        """Clear the cache, whose CRD is gone, and wait until the kind may be served again."""
        self._is_current, self._pause_seconds = False, _FIRST_PAUSE_SECONDS
        self._tell(self.cache.clear())
        self._tried.set()
        self._served.clear()
        self._rests = True
        try:
            async with asyncio.timeout(self._period_seconds):
                await self._served.wait()
        except TimeoutError:
            pass  # time for another try
        finally:
            self._rests = False

    async def _list_if_due(self) -> None:
        now = asyncio.get_running_loop().time()
        if now < self._list_due:
            return
        listing = await self._port.list_scope(self.scope)
        self._version, self._list_due = listing.version, now + self._period_seconds
        self._tell(self.cache.replace(listing.items, listing.version))

    async def _watch(self) -> float:
        """Watch, and return for how many seconds it was open until it ended by itself."""
        loop = asyncio.get_running_loop()
        seconds = max(_LEAST_WATCH_SECONDS, self._list_due - loop.time())
        async with self._port.watch_scope(self.scope, self._version, seconds) as changes:
            self._is_current, self._pause_seconds = True, _FIRST_PAUSE_SECONDS
            self._tried.set()
            opened = loop.time()
            async for change in changes:
                self._take(change)
        return loop.time() - opened

    def _take(self, change: Change) -> None:
        self._version = change.version
        item = change.item
        if item is None:
            return
        news = self.cache.remove(item) if change.what == "DELETED" else self.cache.put(item)
        held = self._held_back.get((item.namespace, item.name))
        if news and held is not None:
            held.append(item)
        elif news:
            self._tell((item,))

    def _tell(self, items: Iterable[StoredObject]) -> None:
        for item in items if self.scope.wakes else ():
            name = self.scope.deployment_of(item)
            if name:
                namespace = item.name if self.scope.kind == NAMESPACE else item.namespace
                self._announce(namespace, name)


def scopes_of(
    labels: Mapping[Kind, str],
    namespaces: Sequence[str] = (),
    quiet: Set[Kind] = frozenset(),
) -> tuple[Scope, ...]:
    """Build a scope for each kind, by its label, and namespace; no namespaces means all at once.
    Kinds in `quiet` wake nothing: they are looked at often, and their controllers write into them
    oftener.
    """
    places = namespaces or (None,)
    return tuple(
        Scope(kind, place, label, wakes=kind not in quiet)
        for kind, label in labels.items()
        for place in places
    )


class Informers:
    """Run one informer for each scope."""

    def __init__(
        self, port: WatchPort, scopes: Sequence[Scope], announce: Announce, period_seconds: float
    ) -> None:
        self._informers = {
            (scope.kind, scope.namespace): Informer(
                port, scope, announce, period_seconds * (1 - _SPREAD * number / len(scopes))
            )
            for number, scope in enumerate(scopes)
        }

    def find(self, kind: Kind, namespace: str) -> Informer | None:
        """Return the informer that follows objects of this kind there."""
        return self._informers.get((kind, None)) or self._informers.get((kind, namespace))

    def of(self, kind: Kind) -> list[Informer]:
        """Find every informer of a kind."""
        return [found for (known, _), found in self._informers.items() if known == kind]

    async def run(self) -> None:
        """Run all informers until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for informer in self._informers.values():
                tasks.create_task(informer.run())

    async def wait_tried(self, seconds: float) -> bool:
        """Return whether each is current, or has failed to be for the first time, within
        `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                for informer in self._informers.values():
                    await informer.wait_tried()
        except TimeoutError:
            return False
        return True
