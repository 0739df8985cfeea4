"""`make check`: ruff on the changed files, and the nearest tests within the budget."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.support.kernels import interpreter_choice
from tests.support.suite_record import read_seconds
from tools.check.changed_files import UnknownBranchError, changed_files
from tools.check.executions import read_executions, steps_by_execution
from tools.check.import_graph import ImportGraph
from tools.check.selection import Selection, select
from tools.suite.parts import Suite

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache"
BIN = ".venv/bin/python"
BUDGET_SECONDS = 50.0
_NO_TESTS = 5  # pytest's exit code if every test is deselected
_LISTED = 8


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of the tests: pytest's exit code, and the files with tests that the time left out."""

    code: int
    unended: tuple[str, ...]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.check", description=_first_line())
    parser.add_argument("files", nargs="*", help="files or folders; without any, what changed")
    parser.add_argument("--base", default="main", help="the branch to compare with (main)")
    parser.add_argument("--all", action="store_true", help="run every test that can see them")
    parser.add_argument("--list", action="store_true", help="print the tests and run nothing")
    parser.add_argument("--seconds", type=float, default=BUDGET_SECONDS, help="for the tests")
    args = parser.parse_args()
    try:
        files = _files_of(args.files) or changed_files(ROOT, args.base)
    except (UnknownBranchError, FileNotFoundError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if not files:
        print(f"nothing differs from {args.base}")
        return 0
    return _check(files, args)


def _check(files: Sequence[str], args: argparse.Namespace) -> int:
    began = time.monotonic()
    budget = float("inf") if args.all else args.seconds
    graph = ImportGraph(ROOT, CACHE / "imports")
    selection, on_cluster = _tests_of(files, graph, budget)
    if args.list:
        print("\n".join(selection.chosen))
        return 0
    lint = _ruff([file for file in files if file.endswith(".py")])
    spent = time.monotonic() - began
    outcome = _run_tests(selection.chosen, budget - spent)
    _tell_left_out((*selection.left_out, *outcome.unended), on_cluster, files)
    return lint or outcome.code


def _files_of(named: Sequence[str]) -> list[str]:
    """Return the named files as seen from the root; a folder stands for the files below it."""
    found: set[str] = set()
    for name in named:
        path = Path(name).resolve()
        if not path.exists() or not path.is_relative_to(ROOT):
            raise FileNotFoundError(f"no file {name} in this checkout: name one that is there")
        inside = [path] if path.is_file() else [*path.rglob("*.py")]
        found |= {each.relative_to(ROOT).as_posix() for each in inside}
    return sorted(found)


def _tests_of(
    files: Sequence[str], graph: ImportGraph, budget: float
) -> tuple[Selection, list[str]]:
    """Select the tests to run, and list the near ones that need a cluster."""
    executions = {t: found for t, found in read_executions().items() if (ROOT / t).exists()}
    steps = {file: steps_by_execution(file, graph.distances(file), executions) for file in files}
    on_cluster = sorted({t for each in steps.values() for t in each if graph.needs_cluster(t)})
    runnable = {
        file: {test: count for test, count in each.items() if test not in on_cluster}
        for file, each in steps.items()
    }
    return select(runnable, read_seconds(), budget), on_cluster


def _ruff(python_files: Sequence[str]) -> int:
    if not python_files:
        return 0
    ruff = [sys.executable, "-m", "ruff"]
    commands = ([*ruff, "format", "--check", *python_files], [*ruff, "check", *python_files])
    return max(subprocess.run(each, cwd=ROOT, check=False).returncode for each in commands)


def _run_tests(tests: Sequence[str], seconds: float) -> Outcome:
    """Run the tests; those of kernels in a process with Triton's interpreter.

    The process with the nearest test is first, and each has the share of the time that its files
    are of all.
    """
    kernels = [
        test
        for test in tests
        if (ROOT / test) in interpreter_choice.kernel_files() and not _has_card()
    ]
    others = [test for test in tests if test not in kernels]
    parts = sorted((part for part in (others, kernels) if part), key=lambda p: tests.index(p[0]))
    code = 0
    unended: list[str] = []
    for part in parts:
        outcome = _pytest(part, seconds * len(part) / len(tests))
        code = code or outcome.code
        unended += outcome.unended
    return Outcome(code, tuple(unended))


def _pytest(tests: Sequence[str], seconds: float) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        unended = Path(folder) / "unended"
        marks = Suite.TEST.marks
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "-m", marks]
        if seconds < float("inf"):
            limit = ["--limit-seconds", str(max(seconds, 1.0)), "--unended", str(unended)]
            command += ["-p", "tools.check.time_limit", *limit]
        environment = {
            name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
        }
        done = subprocess.run([*command, *tests], cwd=ROOT, env=environment, check=False)
        left = unended.read_text(encoding="utf-8").splitlines() if unended.exists() else []
    return Outcome(done.returncode if done.returncode != _NO_TESTS else 0, tuple(left))


def _tell_left_out(
    left_out: Sequence[str], on_cluster: Sequence[str], files: Sequence[str]
) -> None:
    if left_out:
        print(f"\n{len(left_out)} test files that can see the change were left out for time:")
        print("\n".join(f"  {test}" for test in left_out[:_LISTED]))
        if len(left_out) > _LISTED:
            print(f"  … and {len(left_out) - _LISTED} more")
        print(f"run them all: {BIN} -m tools.check --all {' '.join(files)}")
    if on_cluster:
        print(f"{len(on_cluster)} test files need a cluster: make test-cluster runs them")


@cache
def _has_card() -> bool:
    import torch  # seconds; asked only if kernels are to be tested

    return torch.cuda.is_available()


def _first_line() -> str:
    return (__doc__ or "").splitlines()[0]


if __name__ == "__main__":
    sys.exit(main())
