"""WatchPort over an ApiConnection: lists of one version, and watches that report when they are
open.

Bookmarks distinguish a quiet connection from a dead one. Knows no policy; called by the informers.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from atom_operator.cluster.api_connection import ApiConnection, decoded, object_path
from atom_operator.cluster.client import PAGE_SIZE, Page
from atom_operator.cluster.errors import NotFoundError, UnservedError, classify, doing
from atom_operator.cluster.informer import Change, Listing, Scope
from atom_operator.cluster.object_cache import StoredObject

# The API server sends a bookmark every minute: more silence is a dead connection.
_SILENCE_SECONDS = 120.0
_PAGE = Page[dict[str, Any]]


class _Event(msgspec.Struct):
    type: str
    object: dict[str, Any]


class ApiWatch:
    """Watch through the API server; `count` is called with the verb and the kind of every request,
    and of every watch once."""

    def __init__(self, connection: ApiConnection, count: Callable[[str, str], None]) -> None:
        self._connection = connection
        self._count = count

    @classmethod
    def connect(cls, count: Callable[[str, str], None]) -> ApiWatch:
        """Connect by the pod's service account or the kubeconfig of the environment."""
        # A watch holds its connection, and there is one per kind and namespace.
        return cls(ApiConnection.from_environment(most_connections=0), count)

    async def list_scope(self, scope: Scope) -> Listing:
        """List a scope in pages, all of one version."""
        items: list[StoredObject] = []
        asked = {**_chosen(scope), "limit": str(PAGE_SIZE)}
        with doing(f"list {scope.kind.kind}"):
            while True:
                self._count("list", scope.kind.kind)
                try:
                    page = await self._connection.read(_path(scope), asked, _PAGE)
                except NotFoundError as error:
                    raise UnservedError(str(error)) from error
                items.extend(StoredObject.of(item) for item in page.items or ())
                if not page.metadata.more:
                    return Listing(tuple(items), page.metadata.resource_version)
                asked["continue"] = page.metadata.more

    @asynccontextmanager
    async def watch_scope(
        self, scope: Scope, since: str, seconds: float
    ) -> AsyncIterator[AsyncIterator[Change]]:
        """Open once the API server has accepted it."""
        asked = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            **_chosen(scope),
            "resourceVersion": since,
            "timeoutSeconds": str(math.ceil(seconds)),
        }
        self._count("watch", scope.kind.kind)
        with doing(f"watch {scope.kind.kind}"):
            try:
                async with self._connection.stream(
                    _path(scope), asked, silence_seconds=_SILENCE_SECONDS
                ) as lines:
                    yield _changes(lines)
            except NotFoundError as error:
                raise UnservedError(str(error)) from error

    async def close(self) -> None:
        """Close the connections."""
        await self._connection.close()


async def _changes(lines: AsyncIterator[bytes]) -> AsyncIterator[Change]:
    async for line in lines:
        yield _change(decoded(line, _Event))


def _change(event: _Event) -> Change:
    found = event.object
    if event.type == "ERROR":
        raise classify(found.get("code"), str(found.get("message")))
    version = str(found["metadata"]["resourceVersion"])
    if event.type == "BOOKMARK":
        return Change("BOOKMARK", version)
    return Change("DELETED" if event.type == "DELETED" else "PUT", version, StoredObject.of(found))


def _chosen(scope: Scope) -> dict[str, str]:
    return {"labelSelector": scope.label} if scope.label else {}


def _path(scope: Scope) -> str:
    return object_path(scope.kind, scope.namespace)
