"""Without a GPU the kernels' logic is still tested: in Triton's interpreter, on small shapes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from tests.support.suite_record import record_beside

STUCK_SECONDS = 600  # in one case: then its stack is printed, and the run ends
ROOT = Path(__file__).resolve().parents[3]
PARITY = Path(__file__).parent / "parity"


@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.skipif(torch.cuda.is_available(), reason="the parity matrix runs on the GPU itself")
@pytest.mark.parametrize(
    ("marks", "least"),
    [("not whole", 100), pytest.param("whole", 10, marks=pytest.mark.whole)],
)
def test_parity_matrix_in_the_interpreter(
    marks: str, least: int, pytestconfig: pytest.Config
) -> None:
    """Minutes: some 1,000 cases, whose kernels an interpreter runs line by line. How many minutes
    is the machine's, so no limit ends it."""
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    environment |= record_beside(pytestconfig, "kernels")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            str(PARITY),
            "-q",
            "-m",
            f"not gpu and {marks}",
            "-p",
            "no:cacheprovider",
            "-o",
            f"faulthandler_timeout={STUCK_SECONDS}",
            "-o",
            "faulthandler_exit_on_timeout=true",
        ],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    counts = re.search(r"(\d+) passed", done.stdout)
    assert counts is not None, done.stdout[-2000:]
    assert int(counts[1]) > least
    assert "skipped" not in done.stdout.splitlines()[-1]
