"""The index of the files that each test file executes, as `make test` last recorded it here.

It is in the checkout's cache folder and not in git: it is as old as the last run, so `make check`
takes it beside the import graph, which knows new files and new tests.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / ".cache" / "executed-files.json"

_UNSEEN_STEPS = 3  # to a test that executed the file, though no import leads to it
_FARTHER = 4  # steps more, to a test that imports the file and did not execute it
Executions = dict[str, set[str]]  # of each test file, the files that it executed


def add_executions(file: Path, found: Mapping[str, set[str]]) -> None:
    """Put the tests of a run in place of their earlier records; other tests keep theirs.

    Parts of a suite run side by side, so the file is locked meanwhile.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a+", encoding="utf-8") as shared:
        fcntl.flock(shared, fcntl.LOCK_EX)
        shared.seek(0)
        known = _parsed(shared.read())
        known.update(found)
        shared.truncate(0)
        shared.write(_written(known))


def read_executions(file: Path = FILE) -> Executions:
    """Return the index, which is empty before the first `make test`."""
    try:
        return _parsed(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}


def steps_by_execution(
    file: str, steps: Mapping[str, int], executions: Mapping[str, set[str]]
) -> dict[str, int]:
    """Return the steps to the tests of a file, corrected by the index.

    A test that executed the file keeps its steps, or gets some if the import graph leads nowhere.
    If any test executed it, a recorded test that did not goes farther away. The graph alone knows
    of tests that are not recorded, and of a file that no test executed.
    """
    executing = {test for test, files in executions.items() if file in files}
    if not executing:
        return dict(steps)
    corrected = {test: steps.get(test, _UNSEEN_STEPS) for test in executing}
    for test, count in steps.items():
        if test not in executing:
            corrected[test] = count + _FARTHER * (test in executions)
    return corrected


def _written(executions: Mapping[str, set[str]]) -> str:
    """Write each file's name once: a test file executes hundreds."""
    files = sorted(set().union(*executions.values()))
    number = {file: index for index, file in enumerate(files)}
    tests = {
        test: sorted(number[file] for file in found) for test, found in sorted(executions.items())
    }
    return json.dumps({"files": files, "tests": tests}, separators=(",", ":"))


def _parsed(text: str) -> Executions:
    """Read the index; one that a killed run left in halves counts as empty."""
    try:
        told = json.loads(text)
        return {
            test: {told["files"][number] for number in numbers}
            for test, numbers in told["tests"].items()
        }
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        return {}
