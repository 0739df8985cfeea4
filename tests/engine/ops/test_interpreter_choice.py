"""A run that names tests of kernels alone runs in Triton's interpreter; a mixed one is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from tests.support.kernels.interpreter_choice import (
    PARITY,
    ROOT,
    SWITCH,
    MixedRunError,
    kernel_files,
    needs_interpreter,
)

KERNELS = sorted(path.relative_to(PARITY).as_posix() for path in kernel_files())
OTHERS = sorted(
    path.relative_to(PARITY).as_posix() for path in set(PARITY.rglob("test_*.py")) - kernel_files()
)


@pytest.mark.parametrize("name", KERNELS)
def test_every_file_of_kernels_chooses_the_interpreter_by_its_name(name: str) -> None:
    path = PARITY / name
    assert needs_interpreter([str(path)], ROOT)
    assert needs_interpreter([str(path.relative_to(ROOT))], ROOT)
    assert needs_interpreter([f"{path.name}::test_a[1-2]"], path.parent)
    assert needs_interpreter([str(path), str(PARITY / KERNELS[0])], ROOT)


@pytest.mark.parametrize("name", OTHERS)
def test_other_files_choose_no_interpreter(name: str) -> None:
    assert not needs_interpreter([str(PARITY / name)], ROOT)


@pytest.mark.parametrize("folder", [ROOT, ROOT / "tests", PARITY, PARITY / "moe"])
def test_a_folder_with_both_kinds_chooses_no_interpreter(folder: Path) -> None:
    assert not needs_interpreter([str(folder)], ROOT)
    assert not needs_interpreter([], folder)


@pytest.mark.parametrize("other", ["tests/docs", "tests/engine/ops/parity", "tests/none.py"])
def test_both_kinds_in_one_run_are_refused_with_a_command_for_each(other: str) -> None:
    kernels = str((PARITY / KERNELS[0]).relative_to(ROOT))
    with pytest.raises(MixedRunError) as refusal:
        needs_interpreter([other, kernels], ROOT)
    assert f"`pytest {kernels}` and `pytest {other}`" in str(refusal.value)


@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels run on the GPU itself")
@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["moe/test_sort_by_expert.py"], 0, "4 passed"),
        (["moe/test_sort_by_expert.py", "test_token_ops.py"], 4, "Run two commands"),
        (["moe", "--collect-only"], 0, "3 files test single kernels"),
    ],
)
def test_a_run_without_a_card(arguments: list[str], code: int, text: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != SWITCH}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(command, cwd=PARITY, env=environment, capture_output=True, text=True)
    assert (done.returncode, text in done.stdout + done.stderr) == (code, True), done.stdout
