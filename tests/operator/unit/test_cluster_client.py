"""What an API server's refusals mean: absent, not served, busy, or not allowed."""

from __future__ import annotations

import json
from collections.abc import Callable

import httpx2
import pytest
from lightkube import KubeConfig
from lightkube.config.models import Cluster, User
from lightkube.core.async_client import AsyncClient

from atom_operator.cluster.client import LightkubeCluster
from atom_operator.cluster.errors import RefusedError, TransientError
from atom_operator.constants import FIELD_MANAGER
from atom_operator.domain import SERVICE
from atom_operator.kinds import INFERENCE_POOL

Answer = Callable[[httpx2.Request], httpx2.Response]


def cluster(answer: Answer) -> LightkubeCluster:
    """The operator's client, with `answer` in the place of the network."""
    config = KubeConfig.from_one(cluster=Cluster("http://api.test"), user=User())
    client = AsyncClient(
        config=config,
        transport=httpx2.MockTransport(answer),
        field_manager=FIELD_MANAGER,
    )
    return LightkubeCluster(client)


def status(code: int, reason: str) -> httpx2.Response:
    """A refusal in the API's own words."""
    body = {"kind": "Status", "status": "Failure", "reason": reason, "message": reason}
    return httpx2.Response(code, json={**body, "code": code})


def plain(code: int) -> httpx2.Response:
    """What the API server says of a path that it does not know: no JSON."""
    return httpx2.Response(
        code, text="404 page not found\n", headers={"Content-Type": "text/plain"}
    )


async def test_a_group_that_nobody_serves_is_told_from_an_empty_list() -> None:
    unserved = cluster(lambda _: plain(404))
    assert await unserved.list_if_served(INFERENCE_POOL, "default", {}) is None
    empty = {"kind": "InferencePoolList", "metadata": {}, "items": []}
    served = cluster(lambda _: httpx2.Response(200, json=empty))
    assert await served.list_if_served(INFERENCE_POOL, "default", {}) == []


async def test_a_kind_that_its_group_lacks_is_not_served_either() -> None:
    answers = cluster(lambda _: status(404, "NotFound"))
    assert await answers.list_if_served(INFERENCE_POOL, "default", {}) is None


@pytest.mark.parametrize("code", [429, 500, 503, 409])
async def test_a_busy_server_is_no_missing_kind(code: int) -> None:
    with pytest.raises(TransientError):
        await cluster(lambda _: plain(code)).list_if_served(INFERENCE_POOL, "default", {})


async def test_a_kind_that_we_may_not_read_is_refused() -> None:
    answers = cluster(lambda _: status(403, "Forbidden"))
    with pytest.raises(RefusedError) as caught:
        await answers.list_if_served(INFERENCE_POOL, "default", {})
    assert caught.value.code == 403


async def test_an_object_that_is_absent_is_none_and_its_removal_done() -> None:
    absent = cluster(lambda _: status(404, "NotFound"))
    assert await absent.get(SERVICE, "default", "chat") is None
    await absent.delete(SERVICE, "default", "chat")


async def test_a_broken_connection_is_tried_again() -> None:
    def broken(request: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectError("connection refused", request=request)

    with pytest.raises(TransientError, match="list InferencePool in default"):
        await cluster(broken).list_if_served(INFERENCE_POOL, "default", {})


async def test_an_apply_sends_the_manifest_as_it_is_and_takes_what_is_its_own() -> None:
    seen: list[httpx2.Request] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        seen.append(request)
        return httpx2.Response(200, json=json.loads(request.content))

    metadata = {"name": "chat", "namespace": "default"}
    manifest = {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "x-unknown": {"a": 1}}
    assert await cluster(answer).apply(SERVICE, manifest) == manifest
    (request,) = seen
    assert request.headers["Content-Type"] == "application/apply-patch+yaml"
    assert request.url.params["fieldManager"] == FIELD_MANAGER
    assert request.url.params["force"] == "true"
    assert json.loads(request.content) == manifest
