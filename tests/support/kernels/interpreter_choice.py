"""Choose Triton's interpreter for a run that names only tests of single kernels.

Without a card those tests run in the interpreter, and Triton decides when it is imported whether it
interprets. So a process runs either these tests or all others, and the choice comes first: from the
paths on the command line, in `tests/conftest.py`. A run that names no such file leaves them out
(`tests/engine/ops/conftest.py`), and `test_interpreted.py` runs them all in a process.

This module imports neither torch nor Triton.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import cache
from pathlib import Path

SWITCH = "TRITON_INTERPRET"
ROOT = Path(__file__).resolve().parents[3]
PARITY = ROOT / "tests" / "engine" / "ops" / "parity"


class MixedRunError(Exception):
    """One run names tests of kernels and other tests; the text has a command for each."""


@cache
def kernel_files() -> frozenset[Path]:
    """List the files that test single kernels rather than a backend's operations."""
    return frozenset(
        path
        for path in PARITY.rglob("test_*.py")
        if "backends.triton_ops" in path.read_text(encoding="utf-8")
        or path.name == "test_batch_invariant.py"
    )


def is_interpreting() -> bool:
    """Return whether kernels of this process run in the interpreter, once Triton is imported."""
    return os.environ.get(SWITCH) == "1"


def needs_interpreter(arguments: Iterable[str], folder: Path) -> bool:
    """Return whether every path of a command line holds only tests of single kernels.

    `arguments` are paths, with or without `::test`, as seen from `folder`. Raises MixedRunError if
    a file of kernels is named beside other tests.
    """
    named = list(arguments)
    kernels = [each for each in named if _holds_kernels_alone(folder / each.partition("::")[0])]
    others = [each for each in named if each not in kernels]
    if kernels and others:
        raise MixedRunError(
            f"{kernels[0]} runs in Triton's interpreter without a card, and {others[0]} does not; "
            "one process does not run both. Run two commands: "
            f"`pytest {' '.join(kernels)}` and `pytest {' '.join(others)}`"
        )
    return bool(kernels)


def _holds_kernels_alone(path: Path) -> bool:
    path = path.resolve()
    if not path.is_relative_to(PARITY):
        return False
    tests = set(path.rglob("test_*.py")) if path.is_dir() else {path}
    return bool(tests) and tests <= kernel_files()
