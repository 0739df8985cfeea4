"""Lists in pages, watches with bookmarks, and errors by the names that informers act on."""

from __future__ import annotations

from typing import Any

import httpx2
import msgspec
import pytest

from atom_operator.cluster.errors import (
    ExpiredError,
    RefusedError,
    TransientError,
    UnservedError,
)
from atom_operator.cluster.informer import Change, Scope
from atom_operator.cluster.watch_client import HttpWatch
from atom_operator.constants import LABEL_DEPLOYMENT
from atom_operator.domain import CONFIG_MAP, DEPLOYMENT

SCOPE = Scope(CONFIG_MAP, None, LABEL_DEPLOYMENT)


def item(name: str, version: str) -> dict[str, Any]:
    labels = {LABEL_DEPLOYMENT: "chat"}
    metadata = {"name": name, "namespace": "default", "resourceVersion": version}
    return {"metadata": {**metadata, "labels": labels}, "data": {}}


class Api:
    """Answers in turn, and the log of requests."""

    def __init__(self, *answers: httpx2.Response) -> None:
        self.answers = list(answers)
        self.seen: list[httpx2.Request] = []
        self.counted: list[str] = []
        transport = httpx2.MockTransport(self._handle)
        client = httpx2.AsyncClient(base_url="http://api.test", transport=transport)
        self.watch = HttpWatch(client, lambda verb, kind: self.counted.append(f"{verb} {kind}"))

    def _handle(self, request: httpx2.Request) -> httpx2.Response:
        self.seen.append(request)
        return self.answers.pop(0)


def page(*items: dict[str, Any], version: str, more: str | None = None) -> httpx2.Response:
    metadata = {"resourceVersion": version, **({"continue": more} if more else {})}
    return httpx2.Response(200, json={"metadata": metadata, "items": list(items)})


def stream(*events: tuple[str, dict[str, Any]]) -> httpx2.Response:
    lines = [msgspec.json.encode({"type": what, "object": found}) for what, found in events]
    return httpx2.Response(200, content=b"\n".join(lines) + b"\n")


async def changes(api: Api, scope: Scope = SCOPE) -> list[Change]:
    async with api.watch.watch_scope(scope, "40", 299.6) as found:
        return [change async for change in found]


async def test_a_list_is_read_in_pages_to_its_end() -> None:
    api = Api(
        page(item("a", "1"), item("b", "2"), version="40", more="next"),
        page(item("c", "3"), version="40"),
    )
    listing = await api.watch.list_scope(SCOPE)
    assert [found.name for found in listing.items] == ["a", "b", "c"]
    assert listing.version == "40"
    first, second = (request.url for request in api.seen)
    assert first.path == "/api/v1/configmaps"
    assert first.params["labelSelector"] == LABEL_DEPLOYMENT
    assert "resourceVersion" not in first.params, "the newest, not what a cache has"
    assert second.params["continue"] == "next"
    assert api.counted == ["list ConfigMap", "list ConfigMap"]


async def test_a_watch_tells_what_was_put_and_deleted_and_how_far_it_is() -> None:
    bookmark = {"metadata": {"resourceVersion": "50"}}
    api = Api(
        stream(
            ("ADDED", item("a", "41")),
            ("MODIFIED", item("a", "42")),
            ("BOOKMARK", bookmark),
            ("DELETED", item("a", "51")),
        )
    )
    found = await changes(api, Scope(DEPLOYMENT, "team", ""))
    assert [(change.what, change.version) for change in found] == [
        ("PUT", "41"),
        ("PUT", "42"),
        ("BOOKMARK", "50"),
        ("DELETED", "51"),
    ]
    assert [change.item is None for change in found] == [False, False, True, False]
    (request,) = api.seen
    assert request.url.path == "/apis/apps/v1/namespaces/team/deployments"
    asked = dict(request.url.params)
    assert asked["resourceVersion"] == "40"
    assert "labelSelector" not in asked, "everything of the kind, as of AtomDeployments"
    assert asked["allowWatchBookmarks"] == "true"
    assert int(asked["timeoutSeconds"]) >= 299.6, "not over before the next list is due"


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (httpx2.Response(410), ExpiredError),
        (stream(("ERROR", {"code": 410, "message": "too old"})), ExpiredError),
        (stream(("ERROR", {"code": 500, "message": "etcd"})), TransientError),
        (httpx2.Response(503), TransientError),
        (httpx2.Response(403), RefusedError),
        (httpx2.Response(404, text="404 page not found"), UnservedError),
    ],
)
async def test_errors_of_a_watch_have_the_names_of_the_port(
    answer: httpx2.Response, error: type[Exception]
) -> None:
    with pytest.raises(error) as caught:
        await changes(Api(answer))
    assert type(caught.value) is error


async def test_a_page_that_came_too_late_asks_for_a_new_list() -> None:
    api = Api(page(item("a", "1"), version="40", more="next"), httpx2.Response(410))
    with pytest.raises(ExpiredError):
        await api.watch.list_scope(SCOPE)


async def test_a_list_of_a_kind_without_its_crd_says_so() -> None:
    with pytest.raises(UnservedError):
        await Api(httpx2.Response(404, text="404 page not found")).watch.list_scope(SCOPE)
