"""Lists in pages, watches with bookmarks, and errors by the names that informers act on."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from aiohttp import web

from atom_operator.cluster.errors import (
    ExpiredError,
    RefusedError,
    TransientError,
    UnservedError,
)
from atom_operator.cluster.informer import Change, Scope
from atom_operator.cluster.watch_client import ApiWatch
from atom_operator.constants import LABEL_DEPLOYMENT
from atom_operator.domain import CONFIG_MAP, DEPLOYMENT
from tests.support.operator.stub_api_server import (
    Answer,
    Seen,
    cut,
    in_turn,
    plain,
    status,
    stub_api_server,
)

SCOPE = Scope(CONFIG_MAP, None, LABEL_DEPLOYMENT)


def item(name: str, version: str) -> dict[str, Any]:
    labels = {LABEL_DEPLOYMENT: "chat"}
    metadata = {"name": name, "namespace": "default", "resourceVersion": version}
    return {"metadata": {**metadata, "labels": labels}, "data": {}}


class Api:
    """A watch of a stub, and what it counted."""

    def __init__(self, watch: ApiWatch, seen: list[Seen], counted: list[str]) -> None:
        self.watch = watch
        self.seen = seen
        self.counted = counted


@contextlib.asynccontextmanager
async def api(*answers: web.StreamResponse | Answer) -> AsyncIterator[Api]:
    """Answers in turn, and the log of requests."""
    counted: list[str] = []
    async with stub_api_server(in_turn(*answers)) as stub:
        watch = ApiWatch(stub.connection(), lambda verb, kind: counted.append(f"{verb} {kind}"))
        try:
            yield Api(watch, stub.seen, counted)
        finally:
            await watch.close()


def page(*items: dict[str, Any], version: str, more: str | None = None) -> web.Response:
    metadata = {"resourceVersion": version, **({"continue": more} if more else {})}
    return web.json_response({"metadata": metadata, "items": list(items)})


def stream(*events: tuple[str, dict[str, Any]]) -> web.Response:
    lines = [msgspec.json.encode({"type": what, "object": found}) for what, found in events]
    return web.Response(body=b"\n".join(lines) + b"\n")


async def changes(found: Api, scope: Scope = SCOPE) -> list[Change]:
    async with found.watch.watch_scope(scope, "40", 299.6) as told:
        return [change async for change in told]


async def test_a_list_is_read_in_pages_to_its_end() -> None:
    first = page(item("a", "1"), item("b", "2"), version="40", more="next")
    async with api(first, page(item("c", "3"), version="40")) as found:
        listing = await found.watch.list_scope(SCOPE)
    assert [known.name for known in listing.items] == ["a", "b", "c"]
    assert listing.version == "40"
    one, two = found.seen
    assert one.path == "/api/v1/configmaps"
    assert one.query["labelSelector"] == LABEL_DEPLOYMENT
    assert "resourceVersion" not in one.query, "the newest, not what a cache has"
    assert two.query["continue"] == "next"
    assert found.counted == ["list ConfigMap", "list ConfigMap"]


async def test_a_watch_tells_what_was_put_and_deleted_and_how_far_it_is() -> None:
    bookmark = {"metadata": {"resourceVersion": "50"}}
    events = stream(
        ("ADDED", item("a", "41")),
        ("MODIFIED", item("a", "42")),
        ("BOOKMARK", bookmark),
        ("DELETED", item("a", "51")),
    )
    async with api(events) as found:
        told = await changes(found, Scope(DEPLOYMENT, "team", ""))
    assert [(change.what, change.version) for change in told] == [
        ("PUT", "41"),
        ("PUT", "42"),
        ("BOOKMARK", "50"),
        ("DELETED", "51"),
    ]
    assert [change.item is None for change in told] == [False, False, True, False]
    (seen,) = found.seen
    assert seen.path == "/apis/apps/v1/namespaces/team/deployments"
    assert seen.query["resourceVersion"] == "40"
    assert "labelSelector" not in seen.query, "everything of the kind, as of AtomDeployments"
    assert seen.query["allowWatchBookmarks"] == "true"
    assert int(seen.query["timeoutSeconds"]) >= 299.6, "not over before the next list is due"


async def test_a_change_is_told_however_large_it_is_and_however_it_arrives() -> None:
    large = item("a", "41") | {"data": {"x": "y" * 5_000_000}}
    line = msgspec.json.encode({"type": "ADDED", "object": large}) + b"\n"
    small = msgspec.json.encode({"type": "ADDED", "object": item("b", "42")}) + b"\n"

    async def pieces(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for piece in (line[:7], line[7:-3], line[-3:] + small + small[:5], small[5:]):
            await response.write(piece)
        return response

    async with api(pieces) as found:
        told = await changes(found)
    assert [(change.version, change.item and change.item.name) for change in told] == [
        ("41", "a"),
        ("42", "b"),
        ("42", "b"),
    ]


async def test_a_watch_that_is_cut_off_is_told_from_one_that_ended() -> None:
    async def begin(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        line = msgspec.json.encode({"type": "ADDED", "object": item("a", "41")}) + b"\n"
        await response.write(line)
        return cut(request)

    async with api(begin, stream()) as found:
        with pytest.raises(TransientError, match="watch ConfigMap"):
            await changes(found)
        assert await changes(found) == []


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (lambda _: status(410, "Expired"), ExpiredError),
        (
            lambda _: stream(("ERROR", {"code": 410, "message": "too old"})),
            ExpiredError,
        ),
        (lambda _: stream(("ERROR", {"code": 500, "message": "etcd"})), TransientError),
        (lambda _: web.Response(body=b"{broken\n"), TransientError),
        (lambda _: status(503, "starting"), TransientError),
        (lambda _: status(403, "Forbidden"), RefusedError),
        (lambda _: plain(404), UnservedError),
        (cut, TransientError),
    ],
)
async def test_errors_of_a_watch_have_the_names_of_the_port(
    answer: Answer, error: type[Exception]
) -> None:
    async with api(answer) as found:
        with pytest.raises(error) as caught:
            await changes(found)
    assert type(caught.value) is error
    assert str(caught.value).startswith("watch ConfigMap: ")


async def test_a_page_that_came_too_late_asks_for_a_new_list() -> None:
    async with api(
        page(item("a", "1"), version="40", more="next"), status(410, "Expired")
    ) as found:
        with pytest.raises(ExpiredError):
            await found.watch.list_scope(SCOPE)


async def test_a_list_of_a_kind_without_its_crd_says_so() -> None:
    async with api(plain(404)) as found:
        with pytest.raises(UnservedError, match="list ConfigMap"):
            await found.watch.list_scope(SCOPE)
