"""The HTTP application over an engine without a model; files that need another one say so."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from atom.config import Config
from tests.support.engine_core.front_half import build_test_config, write_model_folder
from tests.support.preloaded import starts
from tests.support.processes import children_that_run
from tests.support.random_search import FRESH_SEEDS
from tests.support.server.http_app import AppRig, serve_app


@pytest.fixture(scope="session", autouse=True)
def preloaded_processes() -> Iterator[None]:
    """Servers, engines and ranks are copies of a process that has imported torch, but for tests
    that are about a start (`fresh_processes`) and for the long run."""
    with contextlib.nullcontext() if FRESH_SEEDS else starts.preloaded_starts():
        yield


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    starts.pause(item.get_closest_marker("fresh_processes") is not None)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    return build_test_config(write_model_folder(tmp_path_factory.mktemp("model")))


@pytest.fixture
async def rig(config: Config) -> AsyncIterator[AppRig]:
    async with serve_app(config) as rig:
        yield rig


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def module_server(config: Config) -> AsyncIterator[AppRig]:
    async with serve_app(config) as server:
        yield server


@pytest_asyncio.fixture(loop_scope="module")
async def shared_rig(module_server: AppRig) -> AsyncIterator[AppRig]:
    """One server for the tests of a file that only ask, in the loop of their module: whatever each
    sends, the server goes on, and nothing is left behind."""
    module_server.core.added.clear()
    yield module_server
    good = await module_server.chat("still there?", max_tokens=2)
    assert good.status_code == 200
    assert module_server.engine.open_requests == 0


@pytest.fixture(scope="module", autouse=True)
def no_grammar_compiler_is_left() -> Iterator[None]:
    """An engine of this process that compiled a grammar is closed by the module that made it: the
    compiler's own tests count such processes."""
    yield
    assert children_that_run("compile_server") == []
