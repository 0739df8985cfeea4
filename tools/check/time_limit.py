"""A pytest plugin that ends a run after a number of seconds, between two tests.

    python -m pytest -p tools.check.time_limit --limit-seconds 45 --unended FILE …

FILE gets the test files with a test that did not run, one a line.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

_OVER = "the time for this check is over"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--limit-seconds", type=float, help="end the run after so many seconds")
    parser.addoption("--unended", type=Path, help="gets the files whose tests did not all run")


def pytest_configure(config: pytest.Config) -> None:
    limit, file = config.getoption("--limit-seconds"), config.getoption("--unended")
    config.pluginmanager.register(TimeLimit(limit, file, time.monotonic), "time-limit")


class TimeLimit:
    """Ends a session at the first test that ends later than the limit. `clock` is in seconds."""

    def __init__(self, limit_seconds: float, unended: Path, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._end = clock() + limit_seconds
        self._unended = unended
        self._ran: set[str] = set()
        self._session: pytest.Session | None = None

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._session = session

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._ran.add(nodeid)
        if self._clock() >= self._end and self._session is not None:
            self._session.shouldstop = _OVER

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """A run that the limit ended is as good as its tests."""
        left = {item.nodeid for item in session.items} - self._ran
        files = sorted({nodeid.partition("::")[0] for nodeid in left})
        self._unended.write_text("\n".join(files), encoding="utf-8")
        if session.shouldstop == _OVER:
            session.exitstatus = pytest.ExitCode(bool(session.testsfailed))
