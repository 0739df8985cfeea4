"""WatchPort over HTTP, on lightkube's configuration and credentials.

lightkube's own watch neither says when it is open nor asks for bookmarks, by which a dead
connection is told from a quiet one. Knows no policy; called by the informers.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx2
import msgspec
from lightkube.config.client_adapter import ConnectionParams
from lightkube.config.kubeconfig import KubeConfig

from atom_operator.cluster.client import translated
from atom_operator.cluster.errors import (
    ExpiredError,
    RefusedError,
    TransientError,
    UnservedError,
    classify,
)
from atom_operator.cluster.informer import Change, Listing, Scope
from atom_operator.cluster.object_cache import StoredObject

_PAGE_SIZE = 250
_NOT_FOUND = 404  # no object is asked for by name: it is the kind
_GONE = 410
_TIMEOUT_SECONDS = 10.0
# The API server sends a bookmark every minute: more silence is a dead connection.
_SILENCE_SECONDS = 120.0


class _ListMetadata(msgspec.Struct):
    resource_version: str = msgspec.field(name="resourceVersion")
    more: str | None = msgspec.field(name="continue", default=None)


class _Page(msgspec.Struct):
    metadata: _ListMetadata
    items: list[dict[str, Any]] | None = None


class _Event(msgspec.Struct):
    type: str
    object: dict[str, Any]


class HttpWatch:
    """`count` is told the verb and the kind of every request, and of every watch once."""

    def __init__(self, client: httpx2.AsyncClient, count: Callable[[str, str], None]) -> None:
        self._client = client
        self._count = count

    @classmethod
    def connect(cls, count: Callable[[str, str], None]) -> HttpWatch:
        """From the pod's service account or the kubeconfig of the environment."""
        config = KubeConfig.from_env().get()
        if config is None:
            raise RefusedError("the kubeconfig of the environment names no cluster", 400)
        parameters = ConnectionParams(httpx2.Timeout(_TIMEOUT_SECONDS)).httpx_params(config)
        # A watch holds its connection, and there is one per kind and namespace.
        unlimited = httpx2.Limits(max_connections=None)
        return cls(httpx2.AsyncClient(**parameters, limits=unlimited), count)

    async def list_scope(self, scope: Scope) -> Listing:
        """In pages, all of one version."""
        items: list[StoredObject] = []
        parameters = {**_chosen(scope), "limit": str(_PAGE_SIZE)}
        while True:
            self._count("list", scope.kind.kind)
            with _requested(f"list {scope.kind.kind}"):
                answer = await self._client.get(_path(scope), params=parameters)
                answer.raise_for_status()
            page = msgspec.json.decode(answer.content, type=_Page)
            items.extend(StoredObject.of(item) for item in page.items or ())
            if not page.metadata.more:
                return Listing(tuple(items), page.metadata.resource_version)
            parameters["continue"] = page.metadata.more

    @asynccontextmanager
    async def watch_scope(
        self, scope: Scope, since: str, seconds: float
    ) -> AsyncIterator[AsyncIterator[Change]]:
        """Open once the API server has accepted it."""
        action = f"watch {scope.kind.kind}"
        parameters = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            **_chosen(scope),
            "resourceVersion": since,
            "timeoutSeconds": str(math.ceil(seconds)),
        }
        self._count("watch", scope.kind.kind)
        timeout = httpx2.Timeout(_TIMEOUT_SECONDS, read=_SILENCE_SECONDS)
        with _requested(action):
            async with self._client.stream(
                "GET", _path(scope), params=parameters, timeout=timeout
            ) as answer:
                answer.raise_for_status()
                yield _changes(answer, action)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()


async def _changes(answer: httpx2.Response, action: str) -> AsyncIterator[Change]:
    async for line in answer.aiter_lines():
        if line:
            yield _change(msgspec.json.decode(line, type=_Event), action)


def _change(event: _Event, action: str) -> Change:
    found = event.object
    if event.type == "ERROR":
        code, message = found.get("code"), f"{action}: {found.get('message')}"
        raise ExpiredError(message) if code == _GONE else classify(code, message)
    version = str(found["metadata"]["resourceVersion"])
    if event.type == "BOOKMARK":
        return Change("BOOKMARK", version)
    return Change("DELETED" if event.type == "DELETED" else "PUT", version, StoredObject.of(found))


@contextmanager
def _requested(action: str) -> Iterator[None]:
    """Errors as the port names them; a version that is too old and a kind that is not served by
    names of their own."""
    try:
        with translated(action):
            yield
    except TransientError as error:
        cause = error.__cause__
        code = cause.response.status_code if isinstance(cause, httpx2.HTTPStatusError) else None
        if code == _GONE:
            raise ExpiredError(str(error)) from cause
        if code == _NOT_FOUND:
            raise UnservedError(str(error)) from cause
        raise


def _chosen(scope: Scope) -> dict[str, str]:
    return {"labelSelector": scope.label} if scope.label else {}


def _path(scope: Scope) -> str:
    kind = scope.kind
    parts = ["apis", kind.group, kind.version] if kind.group else ["api", kind.version]
    if scope.namespace is not None:
        parts += ["namespaces", scope.namespace]
    return "/".join([*parts, kind.plural])
