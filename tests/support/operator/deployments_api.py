"""An API server on a real socket that has one kind, AtomDeployments, as kopf meets it.

Discovery, lists and watches; a test cuts the watches, lets their version expire, takes the CRD away
or changes the token. Writes are answered and counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from atom_operator import constants
from tests.support.operator.builders_operator import atom_deployment
from tests.support.operator.stub_api_server import StubApiServer, plain, status, stub_api_server
from tests.support.waiting import HANG_SECONDS

_GROUP = f"/apis/{constants.GROUP}/{constants.VERSION}"
_VERBS = ["get", "list", "watch", "patch"]


def _resource(name: str, kind: str, namespaced: bool) -> dict[str, Any]:
    return {
        "name": name,
        "kind": kind,
        "singularName": kind.lower(),
        "namespaced": namespaced,
        "verbs": _VERBS,
    }


def _group(name: str, version: str) -> dict[str, Any]:
    found = {"groupVersion": f"{name}/{version}", "version": version}
    return {"name": name, "versions": [found], "preferredVersion": found}


@dataclass
class DeploymentsApi:
    """`objects` by name; `watches` are the queues of those that are open; `unserved` is set once
    somebody has asked for what there is not."""

    stub: StubApiServer = field(default_factory=StubApiServer)
    objects: dict[str, dict[str, Any]] = field(default_factory=dict)
    watches: list[asyncio.Queue[dict[str, Any] | None]] = field(default_factory=list)
    is_served: bool = True
    unserved: asyncio.Event = field(default_factory=asyncio.Event)
    _version: int = 100
    _history: list[dict[str, Any]] = field(default_factory=list)
    _news: asyncio.Condition = field(default_factory=asyncio.Condition)

    def put(self, name: str, generation: int = 1, **status: Any) -> None:
        known = name in self.objects
        found = atom_deployment(name)
        found["metadata"] |= {
            "uid": f"uid-{name}",
            "generation": generation,
            "resourceVersion": self._next(),
        }
        self.objects[name] = {**found, **({"status": status} if status else {})}
        self._tell("MODIFIED" if known else "ADDED", self.objects[name])

    def delete(self, name: str) -> None:
        gone = copy.deepcopy(self.objects.pop(name))
        gone["metadata"]["resourceVersion"] = self._next()
        self._tell("DELETED", gone)

    def cut(self) -> None:
        """The connections of all watches end."""
        for watch in self.watches:
            watch.put_nowait(None)

    def expire(self) -> None:
        """All watches are too old, and what they have not heard will not be told."""
        self._history.clear()
        error = {"kind": "Status", "code": 410, "message": "too old resource version"}
        for watch in self.watches:
            watch.put_nowait({"type": "ERROR", "object": error})

    def lose(self, name: str) -> None:
        """Delete what no watch will tell of."""
        del self.objects[name]
        self._next()

    def remove_crd(self) -> None:
        self.is_served = False
        self.cut()

    async def wait_watches(self, count: int) -> None:
        """Until so many are open."""
        async with asyncio.timeout(HANG_SECONDS), self._news:
            await self._news.wait_for(lambda: len(self.watches) == count)

    def lists(self) -> int:
        return sum(
            seen.path.endswith(constants.PLURAL) and "watch" not in seen.query
            for seen in self.stub.seen
        )

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.headers.get("Authorization") != f"Bearer {self.stub.token}":
            return status(401, "Unauthorized")
        path = request.path
        if path == "/api":
            return web.json_response({"versions": ["v1"]})
        if path == "/api/v1":
            return web.json_response({"resources": [_resource("namespaces", "Namespace", False)]})
        if path == "/apis":
            groups = [_group("apiextensions.k8s.io", "v1")]
            if self.is_served:
                groups.append(_group(constants.GROUP, constants.VERSION))
            return web.json_response({"groups": groups})
        if path == "/apis/apiextensions.k8s.io/v1":
            kind = "CustomResourceDefinition"
            crds = _resource("customresourcedefinitions", kind, False)
            return web.json_response({"resources": [crds]})
        if not self.is_served or not path.startswith(_GROUP):
            self.unserved.set()
            return plain(404)
        if path == _GROUP:
            found = _resource(constants.PLURAL, constants.KIND, True)
            return web.json_response({"resources": [found]})
        if "watch" in request.query:
            return await self._watch(request)
        metadata = {"resourceVersion": str(self._version)}
        return web.json_response({"metadata": metadata, "items": list(self.objects.values())})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        since = int(request.query["resourceVersion"])
        watch: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        for event in self._history:
            if int(event["object"]["metadata"]["resourceVersion"]) > since:
                watch.put_nowait(event)
        await self._change_watches(lambda: self.watches.append(watch))
        try:
            while (event := await watch.get()) is not None:
                await response.write(json.dumps(event).encode() + b"\n")
        finally:
            await self._change_watches(lambda: self.watches.remove(watch))
        return response

    async def _change_watches(self, change: Any) -> None:
        async with self._news:
            change()
            self._news.notify_all()

    def _tell(self, what: str, item: dict[str, Any]) -> None:
        event = {"type": what, "object": copy.deepcopy(item)}
        self._history.append(event)
        for watch in self.watches:
            watch.put_nowait(event)

    def _next(self) -> str:
        self._version += 1
        return str(self._version)


@contextlib.asynccontextmanager
async def deployments_api() -> AsyncIterator[DeploymentsApi]:
    api = DeploymentsApi()
    async with stub_api_server(api.answer) as stub:
        api.stub = stub
        try:
            yield api
        finally:
            api.cut()
