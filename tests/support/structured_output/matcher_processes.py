"""The processes of structured output that a test has started, told apart."""

from __future__ import annotations

import psutil

from tests.support.processes import children_that_run, parent_runs

_WORD = "compile_server"


def compile_servers() -> list[psutil.Process]:
    """Without the processes that they fork."""
    return [process for process in _all() if not parent_runs(process, _WORD)]


def matcher_processes() -> list[psutil.Process]:
    """What the compile servers have forked, oldest first: those that follow grammars, and those
    that compile one just now."""
    forked = [process for process in _all() if parent_runs(process, _WORD)]
    return sorted(forked, key=lambda process: process.create_time())


def _all() -> list[psutil.Process]:
    return children_that_run(_WORD, recursive=True)
