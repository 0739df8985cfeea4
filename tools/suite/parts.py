"""Say which commands a suite has: checks, parts of the tests by folder, and the cluster; pure."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

INTEGRATION = "tests/engine/integration"
UNITS = "tests/engine/unit"
KERNELS = "tests/engine/ops/test_interpreted.py"
INDEX = "tests.support.executed_files"
_HANGS_SECONDS = 1800  # no single test takes half of that on two busy cores
_NO_MACHINE = "not cluster and not gpu and not aiter and not slow"
# Marks of tests that `make test` leaves out, all but the first for a part of their cases.
_WHOLE = re.compile(r"mark\.(whole|pairs|singles|rotated|sampled)\b")


class Suite(Enum):
    """The tests to run: those of every commit, or the tests that those leave out."""

    TEST = "test"
    ALL = "all"

    @property
    def marks(self) -> str:
        """Return pytest's expression for the tests that need no cluster and no card."""
        return f"{_NO_MACHINE} and {'not whole' if self is Suite.TEST else 'whole'}"

    @property
    def cluster_marks(self) -> str:
        """Return pytest's expression for the tests on a cluster."""
        outside = "(whole or neighbour)"
        kind = f"not {outside}" if self is Suite.TEST else outside
        return f"cluster and not slow and {kind}"


@dataclass(frozen=True, slots=True)
class Part:
    """One command of a suite, with a name for its record and its output."""

    name: str
    command: tuple[str, ...]


def ending_hangs(seconds: int = _HANGS_SECONDS) -> tuple[str, ...]:
    """Return pytest's options by which a test of so many seconds ends the run, and the stack of
    each thread is in its output; a run that hangs would say nothing."""
    timeout = f"faulthandler_timeout={seconds}"
    return "-o", timeout, "-o", "faulthandler_exit_on_timeout=true"


def parts_of(
    suite: Suite, seed: int, texts: Mapping[str, str], *, keeps_index: bool = True
) -> list[Part]:
    """List a suite's parts, the longest first.

    texts: of each test file, by its path. keeps_index: whether `make test` records which files a
    test executes; `make check` reads it, which no user of CI's clone runs.
    """
    if suite is Suite.TEST:
        files = {
            "integration": [INTEGRATION],
            "engine": [
                "tests/engine",
                *(f"--ignore={each}" for each in (INTEGRATION, KERNELS, UNITS)),
            ],
            "operator": ["--ignore=tests/engine"],
            "units": [UNITS],
            "kernels": [KERNELS],
        }
    else:
        files = _files_with_whole(texts)
    # Of `all`, files run a part of their tests, which would be the poorer record.
    index = ("-p", INDEX) if suite is Suite.TEST and keeps_index else ()
    head = (sys.executable, "-m", "pytest", *index, f"--randomly-seed={seed}", "--durations=10")
    tests = [
        Part(name, (*head, *_guard(paths), "-m", suite.marks, *paths))
        for name, paths in files.items()
        if paths
    ]
    cluster = Part("cluster", (sys.executable, "-m", "tools.cluster_tests", f"--{suite.value}"))
    checks = Part("checks", ("make", "--no-print-directory", "lint", "types", "layers"))
    return [cluster, *tests, *([checks] if suite is Suite.TEST else [])]


def _guard(paths: Sequence[str]) -> tuple[str, ...]:
    """Return the options against hangs; the kernels' one test guards each of its cases itself."""
    return () if KERNELS in paths else ending_hangs()


def _files_with_whole(texts: Mapping[str, str]) -> dict[str, list[str]]:
    """Sort the files that have tests for `all` into parts; to collect the others takes seconds."""
    parts: dict[str, list[str]] = {"integration": [], "engine": [], "kernels": [KERNELS]}
    parts["operator"] = []
    for file, text in sorted(texts.items()):
        if not _WHOLE.search(text) or file == KERNELS or "/ops/parity/" in file:
            continue
        if file.startswith(f"{INTEGRATION}/"):
            parts["integration"].append(file)
        else:
            parts["engine" if file.startswith("tests/engine/") else "operator"].append(file)
    return parts
