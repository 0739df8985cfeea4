"""What the operator asks of an API server, and what the server's refusals mean."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from atom_operator.cluster.client import ApiCluster
from atom_operator.cluster.errors import (
    ClusterError,
    ExpiredError,
    NotFoundError,
    RefusedError,
    TransientError,
)
from atom_operator.constants import FIELD_MANAGER, HANDOVER_MANAGER, LABEL_DEPLOYMENT
from atom_operator.domain import CONFIG_MAP, DEPLOYMENT, POD, SERVICE, ObjectKey
from atom_operator.kinds import INFERENCE_POOL
from tests.support.operator.stub_api_server import (
    Answer,
    StubApiServer,
    cut,
    in_turn,
    plain,
    status,
    stub_api_server,
)

CHAT = {"name": "chat", "namespace": "default"}


@contextlib.asynccontextmanager
async def cluster(
    answer: Answer, namespaces: tuple[str, ...] = ()
) -> AsyncIterator[tuple[ApiCluster, StubApiServer]]:
    """The operator's client, and the server that answers it."""
    async with stub_api_server(answer) as stub:
        client = ApiCluster(stub.connection(), namespaces)
        try:
            yield client, stub
        finally:
            await client.close()


def page(*items: dict[str, object], more: str = "") -> web.Response:
    metadata = {"resourceVersion": "40", **({"continue": more} if more else {})}
    return web.json_response({"metadata": metadata, "items": list(items)})


async def test_a_group_that_nobody_serves_is_told_from_an_empty_list() -> None:
    async with cluster(in_turn(plain(404), page())) as (client, _):
        assert await client.list_if_served(INFERENCE_POOL, "default", {}) is None
        assert await client.list_if_served(INFERENCE_POOL, "default", {}) == []


async def test_a_kind_that_its_group_lacks_is_not_served_either() -> None:
    async with cluster(lambda _: status(404, "NotFound")) as (client, _):
        assert await client.list_if_served(INFERENCE_POOL, "default", {}) is None


@pytest.mark.parametrize("code", [429, 500, 503, 409])
async def test_a_busy_server_is_no_missing_kind(code: int) -> None:
    async with cluster(lambda _: plain(code)) as (client, _):
        with pytest.raises(TransientError):
            await client.list_if_served(INFERENCE_POOL, "default", {})


async def test_a_kind_that_we_may_not_read_is_refused() -> None:
    async with cluster(lambda _: status(403, "Forbidden")) as (client, _):
        with pytest.raises(RefusedError) as caught:
            await client.list_if_served(INFERENCE_POOL, "default", {})
        assert caught.value.code == 403
        assert await client.list_holders(INFERENCE_POOL) == set()


async def test_an_object_that_is_absent_is_none_and_its_removal_done() -> None:
    async with cluster(lambda _: status(404, "NotFound")) as (client, _):
        assert await client.get(SERVICE, "default", "chat") is None
        assert await client.delete(SERVICE, "default", "chat")
        assert await client.apply_status(ObjectKey("default", "chat"), {}) is None
        assert await client.apply_profile_status("site", {}) is None


@pytest.mark.parametrize(
    ("answer", "gone"),
    [({"kind": "Status", "status": "Success"}, True), ({"kind": "Job", "metadata": CHAT}, False)],
)
async def test_what_a_finalizer_keeps_is_not_gone(answer: dict[str, Any], gone: bool) -> None:
    async with cluster(lambda _: web.json_response(answer)) as (client, _):
        assert await client.delete(SERVICE, "default", "chat") == gone


@pytest.mark.parametrize(
    ("answer", "error", "said"),
    [
        (lambda _: status(422, "spec.x: no"), RefusedError, "spec.x: no"),
        (lambda _: status(403, "exceeded quota"), RefusedError, "exceeded quota"),
        (lambda _: status(409, "the object was changed"), TransientError, "changed"),
        (lambda _: status(404, "no namespace"), NotFoundError, "no namespace"),
        (lambda _: status(410, "too old"), ExpiredError, "too old"),
        (lambda _: status(429, "too many requests"), TransientError, "too many"),
        (lambda _: status(500, "etcd"), TransientError, "etcd"),
        (
            lambda _: status(500, "failed to create typed patch object: .spec.x"),
            RefusedError,
            "spec.x",
        ),
        (lambda _: web.Response(status=502, text="<html>"), TransientError, "HTTP 502 <html>"),
        (lambda _: web.Response(status=503), TransientError, "HTTP 503 Service Unavailable"),
        (lambda _: web.Response(text="<html>"), TransientError, "not the API server's"),
        (cut, TransientError, "Disconnected"),
    ],
)
async def test_every_failure_has_a_name_and_says_what_was_asked(
    answer: Answer, error: type[ClusterError], said: str
) -> None:
    async with cluster(answer) as (client, _):
        with pytest.raises(error) as caught:
            await client.apply(SERVICE, {"metadata": CHAT})
    assert type(caught.value) is error
    assert str(caught.value).startswith("apply Service default/chat: ")
    assert said in str(caught.value)


async def test_a_server_that_is_not_there_is_tried_again() -> None:
    async with cluster(lambda _: page()) as (client, stub):
        stub.url = "http://127.0.0.1:1"
        with pytest.raises(TransientError, match="list InferencePool in default"):
            await client.list_if_served(INFERENCE_POOL, "default", {})


async def test_an_answer_that_breaks_off_is_tried_again() -> None:
    async def half(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "100"})
        await response.prepare(request)
        await response.write(b'{"metadata"')
        return cut(request)

    async with cluster(half) as (client, _):
        with pytest.raises(TransientError, match="get Service default/chat"):
            await client.get(SERVICE, "default", "chat")


async def test_an_apply_sends_the_manifest_as_it_is_and_takes_what_is_its_own() -> None:
    manifest = {"apiVersion": "v1", "kind": "Service", "metadata": CHAT, "x-unknown": {"a": 1}}
    async with cluster(lambda _: web.json_response(manifest)) as (client, stub):
        assert await client.apply(SERVICE, manifest) == manifest
    (seen,) = stub.seen
    assert (seen.method, seen.path) == ("PATCH", "/api/v1/namespaces/default/services/chat")
    assert seen.headers["Content-Type"] == "application/apply-patch+yaml"
    assert seen.query == {"fieldManager": FIELD_MANAGER, "force": "true"}
    assert json.loads(seen.body) == manifest


async def test_every_write_says_who_writes_and_what() -> None:
    manifest = {"metadata": CHAT}
    async with cluster(lambda _: web.json_response(manifest)) as (client, stub):
        await client.hand_over_replicas(DEPLOYMENT, "default", "chat", 3)
        await client.replace(SERVICE, manifest)
        await client.delete(SERVICE, "default", "chat")
        await client.apply_status(ObjectKey("default", "chat"), {"replicas": 1})
        await client.apply_profile_status("site", {"waiting": 1})
    handed, replaced, deleted, reported, counted = stub.seen
    assert handed.path == "/apis/apps/v1/namespaces/default/deployments/chat"
    assert handed.query == {"fieldManager": HANDOVER_MANAGER}, "not forced: it meets a conflict"
    assert json.loads(handed.body)["spec"] == {"replicas": 3}
    assert (replaced.method, replaced.query) == ("PUT", {"fieldManager": FIELD_MANAGER})
    assert (deleted.method, deleted.query) == ("DELETE", {"propagationPolicy": "Background"})
    assert reported.path.endswith("/namespaces/default/atomdeployments/chat/status")
    assert json.loads(reported.body)["status"] == {"replicas": 1}
    assert counted.path.endswith("v1alpha1/atomprofiles/site/status")
    assert json.loads(counted.body)["status"] == {"waiting": 1}


async def test_a_list_is_read_in_pages_to_its_end() -> None:
    first = {"metadata": {**CHAT, "labels": {LABEL_DEPLOYMENT: "chat"}}, "data": {}}
    second = {"metadata": {**CHAT, "name": "other"}}
    labels = {LABEL_DEPLOYMENT: "chat", "app": "x"}
    async with cluster(in_turn(page(first, more="next"), page(second))) as (client, stub):
        assert await client.list_labelled(CONFIG_MAP, "default", labels) == [first, second]
    one, two = stub.seen
    assert one.path == "/api/v1/namespaces/default/configmaps"
    assert one.query["labelSelector"] == f"{LABEL_DEPLOYMENT}=chat,app=x"
    assert two.query == {**one.query, "continue": "next"}


async def test_the_namespaces_that_are_watched_are_the_ones_that_are_listed() -> None:
    item = {"metadata": {**CHAT, "labels": {LABEL_DEPLOYMENT: "owner"}}, "spec": {"a": 1}}
    async with cluster(lambda _: page(item)) as (client, stub):
        assert await client.list_deployments() == [ObjectKey("default", "chat")]
        assert stub.seen[-1].path == "/apis/serving.atom.dev/v1alpha1/atomdeployments"
        assert await client.list_holders(CONFIG_MAP) == {ObjectKey("default", "owner")}
        assert stub.seen[-1].path == "/api/v1/configmaps"
    async with cluster(lambda _: page(item), ("a", "b")) as (client, stub):
        await client.list_deployments()
        paths = [seen.path.split("/")[5] for seen in stub.seen]
        assert paths == ["a", "b"]


async def test_only_pods_that_hold_devices_are_listed() -> None:
    async with cluster(lambda _: page()) as (client, stub):
        assert await client.list_placed_pods() == []
    (seen,) = stub.seen
    assert seen.path == f"/api/v1/{POD.plural}"
    assert seen.query["fieldSelector"] == (
        "spec.nodeName!=,status.phase!=Failed,status.phase!=Succeeded"
    )


async def test_pods_that_are_followed_anyhow_are_left_out() -> None:
    async with cluster(lambda _: page()) as (client, stub):
        await client.list_placed_pods(others=True)
    (seen,) = stub.seen
    assert seen.query["labelSelector"] == f"!{LABEL_DEPLOYMENT}"
    async with cluster(lambda _: page(), ("a", "b")) as (client, stub):
        await client.list_placed_pods(others=True)
    elsewhere, *mine = stub.seen
    assert "labelSelector" not in elsewhere.query
    assert elsewhere.query["fieldSelector"].endswith("metadata.namespace!=a,metadata.namespace!=b")
    assert [seen.path for seen in mine] == [f"/api/v1/namespaces/{name}/pods" for name in "ab"]
    assert {seen.query["labelSelector"] for seen in mine} == {f"!{LABEL_DEPLOYMENT}"}


async def test_credentials_that_were_renewed_are_read_when_the_old_ones_are_rejected() -> None:
    def answer(request: web.Request) -> web.Response:
        known = request.headers["Authorization"] == "Bearer second"
        return page() if known else status(401, "Unauthorized")

    async with cluster(answer) as (client, stub):
        clock = asyncio.get_running_loop()
        started = clock.time()
        with pytest.raises(TransientError):
            await client.list_nodes()
        stub.token = "second"
        assert stub.logins == 1
        with pytest.MonkeyPatch.context() as later:
            later.setattr(clock, "time", lambda: started + 60)
            with pytest.raises(TransientError, match="Unauthorized"):
                await client.list_nodes()
        assert await client.list_nodes() == []
        assert stub.logins == 2
