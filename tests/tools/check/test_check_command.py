"""The command finds what changed, stops at its limit, and says which tests it leaves out."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.check.changed_files import UnknownBranchError, changed_files

ROOT = Path(__file__).parents[3]
STEP_TIME = "engine/atom/model_engine/schedule/step_time.py"


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


def check(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tools.check", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    git(tmp_path, "init", "--initial-branch=main")
    for name in ("kept.py", "edited.py", "committed.py", "deleted.py"):
        (tmp_path / name).write_text("")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "first")
    git(tmp_path, "switch", "-c", "branch")
    return tmp_path


def test_what_changed_is_committed_edited_or_new(clone: Path) -> None:
    (clone / "committed.py").write_text("a = 1")
    git(clone, "commit", "-am", "second")
    (clone / "edited.py").write_text("a = 1")
    (clone / "new.py").write_text("")
    (clone / "deleted.py").unlink()
    assert changed_files(clone, "main") == ["committed.py", "edited.py", "new.py"]


def test_what_the_other_branch_gained_since_is_no_change_of_this_one(clone: Path) -> None:
    git(clone, "switch", "main")
    (clone / "theirs.py").write_text("")
    git(clone, "add", ".")
    git(clone, "commit", "-m", "theirs")
    git(clone, "switch", "branch")
    assert changed_files(clone, "main") == []


def test_a_branch_that_is_not_there_is_named_with_the_remedy(clone: Path) -> None:
    with pytest.raises(UnknownBranchError, match=r"no branch other.*FILES="):
        changed_files(clone, "other")


def test_a_line_of_the_scheduler_runs_its_tests() -> None:
    done = check(STEP_TIME, "--seconds", "5")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" in done.stdout
    assert "left out for time" in done.stdout
    assert f"tools.check --all {STEP_TIME}" in done.stdout


def test_a_file_that_is_not_there_is_refused_by_name() -> None:
    done = check("engine/atom/none.py")
    assert (done.returncode, "no file engine/atom/none.py" in done.stderr) == (2, True)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("failing", "code"), [(False, 0), (True, 1)])
def test_a_run_ends_at_its_limit_and_tells_the_rest(
    tmp_path: Path, failing: bool, code: int
) -> None:
    """A limit of no seconds: one test runs, so that there is something to go by."""
    (tmp_path / "test_a.py").write_text(f"def test_one(): assert {not failing}\n")
    (tmp_path / "test_b.py").write_text("def test_two(): ...\n")
    limit = ["-p", "tools.check.time_limit", "--limit-seconds=0", "--unended=unended"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", *limit, "test_a.py"]
    done = subprocess.run(
        [*command, "test_b.py", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir=."],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stdout
    assert (tmp_path / "unended").read_text() == "test_b.py"


def test_the_tests_of_a_kernel_run_in_the_interpreter_beside_others() -> None:
    sort = "engine/atom/model_ops/backends/triton_ops/moe/sort_by_expert.py"
    named = check(sort, "--list").stdout.splitlines()
    assert named[0] == "tests/engine/ops/parity/moe/test_sort_by_expert.py"
    assert [test for test in named if "/parity/" not in test]
    assert [test for test in named if "/live/" in test] == []
