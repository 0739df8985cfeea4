"""Tests ask for processes by `tests.support.processes`, which bears that one ends meanwhile."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import psutil

from tests.support import processes
from tests.support.waiting import wait_until

_TESTS = Path(processes.__file__).parents[1]
_ASKS = re.compile(r"\.(cmdline|children|ppid|parent)\(|\bSTATUS_ZOMBIE\b")
_MAY_ASK = {Path(processes.__file__), Path(__file__)}


def test_no_test_asks_psutil_itself() -> None:
    asking = [path for path in _TESTS.rglob("*.py") if _ASKS.search(path.read_text())]
    assert set(asking) <= _MAY_ASK


def test_a_process_that_ends_while_it_is_listed_is_one_that_has_ended() -> None:
    """As a kernel shows it at each stage: it runs, is dead and not waited for, and is gone."""
    child = subprocess.Popen([sys.executable, "-c", "input()", "word"], stdin=subprocess.PIPE)
    seen = psutil.Process(child.pid)
    assert processes.children_that_run("input()") == [seen]
    assert processes.parent_runs(seen, "python")
    assert not processes.has_ended(seen)

    child.kill()
    wait_until(lambda: processes.has_ended(seen), "it is dead")
    assert processes.command_of(seen) == ""
    assert processes.children_that_run("input()") == []

    child.wait()
    assert processes.has_ended(seen)
    assert processes.command_of(seen) == ""
    assert not processes.parent_runs(seen, "python")
    assert processes.children_of(seen.pid) == []
    processes.kill_all_below(seen.pid)  # and nothing is said
