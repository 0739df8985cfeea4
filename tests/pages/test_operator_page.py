"""The operator's page in a real browser, over a cluster in memory."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from playwright.async_api import expect
from prometheus_client import CollectorRegistry

from atom_operator import endpoints
from atom_operator.page.page_reader import PageReader
from atom_operator.page.page_routes import add_page
from atom_operator.settings import OperatorSettings
from tests.support.browser import opened
from tests.support.operator.builders_operator import IMAGES, cluster_with, gpu_node, reconciler
from tests.support.operator.builders_operator import KEY as CHAT
from tests.support.operator.fake_cluster import FakeCluster

pytestmark = pytest.mark.slow


@contextlib.asynccontextmanager
async def page_of(cluster: FakeCluster) -> AsyncIterator[str]:
    """The page's address; it is served as the operator does, beside the metrics."""
    application = endpoints.metrics(CollectorRegistry())
    reader = PageReader(cluster, OperatorSettings(engine_images=IMAGES), time.monotonic)
    add_page(application, reader.document)
    runner = web.AppRunner(application)
    await runner.setup()
    listener = endpoints.listen("127.0.0.1", 0)
    await web.SockSite(runner, listener).start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
    await runner.cleanup()


async def a_cluster() -> FakeCluster:
    cluster = cluster_with(
        model={"source": "hf://Qwen/Qwen3-8B"}, accelerator={"product": "MI300X"}
    )
    cluster.nodes = [gpu_node("node-a"), gpu_node("node-b", cordoned=True)]
    await reconciler(cluster).reconcile(CHAT)
    return cluster


async def test_it_says_what_is_there_and_how_it_is() -> None:
    async with page_of(await a_cluster()) as url, opened(url) as found:
        card = found.page.get_by_role("article", name="default/chat")
        await expect(card).to_contain_text("hf://Qwen/Qwen3-8B")
        conditions = card.get_by_role("list", name="Conditions")
        await expect(conditions).to_contain_text("Ready: no.")
        await expect(conditions).to_contain_text("Capacity fits: yes.")
        bar = card.get_by_role("img")
        assert "weights 15.3 GiB" in (await bar.get_attribute("aria-label") or "")
        rows = found.page.get_by_role("table").get_by_role("row")
        await expect(rows.filter(has_text="node-a")).to_contain_text("amd.com/gpu")
        await expect(rows.filter(has_text="node-b")).to_contain_text("cordoned")
        assert found.faults == []
        assert all(address.startswith(url) for address in found.addresses)


async def test_a_phone_and_the_dark_have_it_too() -> None:
    async with page_of(await a_cluster()) as url:
        window = {"width": 360, "height": 740}
        async with opened(url, viewport=window, color_scheme="dark") as found:
            await expect(found.page.get_by_role("article")).to_be_visible()
            assert await found.overflow_pixels() == 0
            assert await found.brightness() < 64


async def test_an_api_server_that_does_not_answer_is_told() -> None:
    cluster = await a_cluster()

    async def fails() -> list[object]:
        from atom_operator.cluster.errors import TransientError

        raise TransientError("the API server does not answer")

    cluster.list_deployments = fails  # type: ignore[assignment]
    async with page_of(cluster) as url, opened(url) as found:
        await expect(found.page.get_by_role("alert")).to_contain_text(
            "The cluster cannot be read now: the API server does not answer"
        )


async def test_an_empty_cluster_says_what_to_do() -> None:
    async with page_of(FakeCluster()) as url, opened(url) as found:
        await expect(found.page.get_by_role("main")).to_contain_text("There is no AtomDeployment")
