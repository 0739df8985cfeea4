"""What tests of every part may need.

Models here are so small that a second thread only costs: one waits for the other, at every
operation, and beside other busy processes for as long as the system lets that one wait. So torch
takes one thread in tests and in what they start, unless the environment says otherwise; what is
about threads asks for them. Read when torch is imported, so set before anything that does.
"""

from __future__ import annotations

import atexit
import gc
import os
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support.kernels import interpreter_choice
from tests.support.random_search import FRESH_SEEDS, draw_the_same_everywhere

pytest_plugins = ["tests.support.suite_record", "tests.support.thinned_cases"]

# How long an example takes says nothing where others use the cores. And the daily run fails for
# faults, not for luck: its examples are the same each time.
settings.register_profile(
    "daily",
    max_examples=24,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=True,
    database=None,
)
settings.register_profile(
    "fresh seeds",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.load_profile("fresh seeds" if FRESH_SEEDS else "daily")
if not FRESH_SEEDS:
    draw_the_same_everywhere()

# What is imported and collected stays, so the collector need not walk over it: not meanwhile, where
# it takes a sixth of the time, and not behind every so many tests.
gc.disable()


def pytest_collection_finish(session: pytest.Session) -> None:
    if session.config.option.collectonly:
        return
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_unconfigure(config: pytest.Config) -> None:
    if config.option.collectonly:
        gc.freeze()  # else pytest walks five times over everything
        atexit.register(gc.unfreeze)
    else:
        gc.unfreeze()  # libraries complain of what is not collected at the end


os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("GOMP_SPINCOUNT", "2000")


def pytest_addoption(pluginmanager: pytest.PytestPluginManager) -> None:
    """Choose Triton's interpreter before any other conftest can import Triton: this hook is the
    earliest that a conftest has."""
    config = pluginmanager.getplugin("pytestconfig")
    named = config.known_args_namespace.file_or_dir
    try:
        asked = interpreter_choice.needs_interpreter(named, config.invocation_params.dir)
    except interpreter_choice.MixedRunError as error:
        if _has_card() or interpreter_choice.is_interpreting():
            return
        raise pytest.UsageError(str(error)) from None
    if asked and not _has_card():
        os.environ[interpreter_choice.SWITCH] = "1"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") is not None and not _has_card():
        pytest.skip("torch sees no GPU")


@cache
def _has_card() -> bool:
    import torch  # seconds, which tests without a card's marks need not pay

    return torch.cuda.is_available()


@pytest.fixture(scope="module", autouse=True)
def others_are_not_slowed_down() -> Iterator[None]:
    """What a server does to its process at start is for the program that runs it: a test that runs
    one in this process leaves those behind it their share of a core."""
    niceness = os.nice(0)
    yield
    assert os.nice(0) == niceness


@pytest.fixture
def socket_folder() -> Iterator[Path]:
    """A folder for Unix sockets, whose paths are bounded however long TMPDIR is."""
    with tempfile.TemporaryDirectory(prefix="atom-test-", dir="/tmp") as folder:
        yield Path(folder)
