"""kopf's operator against an API server on a socket: what it tells, and what it leaves alone."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import kopf
import pytest
from kubernetes.aio.client import Configuration

from atom_operator.cluster.client import ApiCluster
from atom_operator.domain import ATOM_DEPLOYMENT
from atom_operator.handlers import deployments
from atom_operator.handlers.deployments import (
    DeploymentEvent,
    DeploymentHandlers,
    connection_info,
    kopf_settings,
)
from tests.support.operator.deployments_api import DeploymentsApi, deployments_api
from tests.support.waiting import HANG_SECONDS


class Heard:
    """What was told, in order."""

    def __init__(self) -> None:
        self.events: asyncio.Queue[DeploymentEvent] = asyncio.Queue()

    async def names(self, count: int) -> list[str]:
        """The next `count` that are told, with "!" where no status speaks of the spec."""
        async with asyncio.timeout(HANG_SECONDS):
            found = [await self.events.get() for _ in range(count)]
        return [f"{event.key.name}{'!' if event.is_unreported else ''}" for event in found]


@contextlib.asynccontextmanager
async def handlers(
    *names: str,
    settings: Callable[[], kopf.OperatorSettings] = kopf_settings,
    namespaces: tuple[str, ...] = (),
) -> AsyncIterator[tuple[DeploymentsApi, Heard]]:
    """Handlers that watch, once everything there is was told."""
    async with deployments_api() as api:
        for name in names:
            api.put(name)
        heard = Heard()
        cluster = ApiCluster(api.stub.connection())
        running = DeploymentHandlers(
            namespaces,
            heard.events.put_nowait,
            lambda: cluster.serves(ATOM_DEPLOYMENT),
            login=api.stub.login,
            settings=settings,
        )
        task = asyncio.create_task(running.run())
        try:
            await api.wait_watches(len(namespaces) or 1)
            yield api, heard
        finally:
            task.cancel()
            await asyncio.wait([task])
            await api.wait_watches(0)
            await cluster.close()


async def test_what_there_is_comes_first_and_then_what_changes_and_goes() -> None:
    async with handlers("one") as (api, heard):
        assert await heard.names(1) == ["one!"]
        api.put("one", observedGeneration=1)
        api.put("two")
        assert sorted(await heard.names(2)) == ["one", "two!"]
        api.put("one", generation=2, observedGeneration=1)
        assert await heard.names(1) == ["one!"]
        api.delete("one")
        assert await heard.names(1) == ["one!"], "that it is gone is news too"


async def test_kopf_writes_nothing_and_asks_for_no_other_kind() -> None:
    async with handlers("one") as (api, heard):
        await heard.names(1)
        for generation in range(2, 5):
            api.put("one", generation=generation, observedGeneration=1)
            await heard.names(1)
        assert {seen.method for seen in api.stub.seen} == {"GET"}
        watched = {seen.path for seen in api.stub.seen if "watch" in seen.query}
        assert watched == {"/apis/serving.atom.dev/v1alpha1/atomdeployments"}


async def test_namespaces_of_their_own_are_watched_each_for_itself() -> None:
    async with handlers("one", namespaces=("a", "b")) as (api, _):
        watched = {seen.path.split("/")[-2] for seen in api.stub.seen if "watch" in seen.query}
        assert watched == {"a", "b"}


async def test_a_connection_that_breaks_goes_on_where_it_was() -> None:
    async with handlers("one") as (api, heard):
        await heard.names(1)
        api.cut()
        await api.wait_watches(0)
        api.put("two")
        assert await heard.names(1) == ["two!"]
        assert api.lists() == 1


async def test_a_silent_connection_is_given_up() -> None:
    def impatient() -> kopf.OperatorSettings:
        settings = kopf_settings()
        settings.watching.inactivity_timeout = 0.2
        return settings

    async with handlers("one", settings=impatient) as (api, heard):
        await heard.names(1)
        await api.wait_watches(0)
        await api.wait_watches(1)
        api.put("two")
        assert await heard.names(1) == ["two!"]
        assert api.lists() == 1


async def test_a_list_after_a_version_that_was_too_old_says_nothing_of_what_is_gone() -> None:
    """Which is why caches are not kopf's: a reconcile looks at an AtomDeployment by itself."""
    async with handlers("one", "gone") as (api, heard):
        assert sorted(await heard.names(2)) == ["gone!", "one!"]
        api.lose("gone")
        api.expire()
        assert await heard.names(1) == ["one!"]
        api.put("two")
        assert await heard.names(1) == ["two!"]
        assert api.lists() == 2


async def test_credentials_that_were_renewed_are_read_when_the_old_ones_are_rejected() -> None:
    async with handlers("one") as (api, heard):
        await heard.names(1)
        logins, api.stub.token = api.stub.logins, "second"
        api.put("two")
        api.cut()
        assert "two!" in await heard.names(1)
        api.put("three")
        assert "three!" in await heard.names(1)
        assert api.stub.logins > logins


async def test_a_crd_that_goes_and_comes_is_watched_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for pause in ("_FIRST_PAUSE_SECONDS", "_SERVED_SECONDS"):
        monkeypatch.setattr(deployments, pause, 0.05)
    async with handlers("one") as (api, heard):
        await heard.names(1)
        api.remove_crd()
        api.objects.clear()
        await api.unserved.wait()
        api.is_served = True
        api.put("new")
        assert "new!" in await heard.names(1)


async def test_after_its_end_nothing_is_heard_or_watched_and_other_tasks_go_on() -> None:
    """kopf cancels every task of its loop when it ends: it must not be ours."""
    bystander = None
    async with handlers("one") as (api, heard):
        await heard.names(1)
        bystander = asyncio.create_task(asyncio.sleep(HANG_SECONDS))
    api.put("two")
    assert heard.events.empty()
    assert not bystander.done()
    bystander.cancel()


@pytest.mark.parametrize(
    ("token", "scheme", "rest"),
    [("Bearer a b", "Bearer", "a b"), ("bearer x\n", "bearer", "x"), ("", None, None)],
)
def test_kopf_logs_in_as_the_client_does(token: str, scheme: str | None, rest: str | None) -> None:
    configuration = Configuration(host="https://api:6443", api_key={"BearerToken": token})
    configuration.ssl_ca_cert, configuration.cert_file = "/ca.crt", "/client.crt"
    configuration.key_file, configuration.verify_ssl = "/client.key", False
    configuration.proxy = "http://proxy:1"
    found = connection_info(configuration)
    assert (found.scheme, found.token) == (scheme, rest)
    assert (found.server, found.ca_path, found.insecure) == ("https://api:6443", "/ca.crt", True)
    assert (found.certificate_path, found.private_key_path) == ("/client.crt", "/client.key")
    assert found.proxy_url == "http://proxy:1"
