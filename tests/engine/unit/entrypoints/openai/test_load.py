"""/ping and /load, as SageMaker and load balancers ask them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from atom.config import Config
from tests.support.engine_core.front_half import build_test_config, write_model_folder
from tests.support.server.http_app import AppRig, serve_app
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    return build_test_config(write_model_folder(tmp_path_factory.mktemp("model")))


@pytest.fixture
async def held(config: Config) -> AsyncIterator[AppRig]:
    """The core keeps its tokens until it is told."""
    async with serve_app(config, held=True) as rig:
        yield rig


async def test_ping_says_what_health_says(held: AppRig) -> None:
    for method in ("GET", "POST"):
        assert (await held.client.request(method, "/ping")).status_code == 200
    held.core.die("the device is gone")
    await eventually(lambda: held.state.is_ending, "the engine is known to be dead")
    for method in ("GET", "POST"):
        ping = await held.client.request(method, "/ping")
        health = await held.client.get("/health")
        assert (ping.status_code, ping.json()) == (health.status_code, health.json())
        assert ping.status_code == 503


async def test_load_counts_open_requests_and_forgets_them(held: AppRig) -> None:
    assert (await held.client.get("/load")).json()["server_load"] == 0
    asked = [asyncio.create_task(held.chat(f"text {index}", max_tokens=2)) for index in range(3)]
    await eventually(lambda: held.engine.open_requests == 3, "they are queued")
    held.core.report_stats(0, requests_running=2, requests_waiting=1)
    await eventually(lambda: bool(held.engine.stats_by_rank), "the rank has told")
    load = (await held.client.get("/load")).json()
    assert load == {"server_load": 3, "requests_running": 2, "requests_waiting": 1}
    for task in asked:
        task.cancel()
    await eventually(lambda: held.engine.open_requests == 0, "they are aborted")
    assert (await held.client.get("/load")).json()["server_load"] == 0


async def test_there_is_no_load_before_the_engine_runs(config: Config) -> None:
    async with serve_app(config, ready_on_start=False) as rig:
        assert (await rig.client.get("/load")).status_code == 503
        assert (await rig.client.get("/ping")).status_code == 503
