"""Signs of life, and one invocation at a time."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from devcluster import progress
from devcluster.errors import DevclusterError
from devcluster.lock import exclusive
from devcluster.progress import Step, elapsed_text
from devcluster.settings import REPOSITORY
from devcluster.shell import follow, run
from tests.support.waiting import HANG_SECONDS


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.44, "0.4 s"), (59.4, "59 s"), (60, "1 min 00 s"), (185, "3 min 05 s")]
)
def test_elapsed_time_is_short_to_read(seconds: float, text: str) -> None:
    assert elapsed_text(seconds) == text


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_step_without_a_terminal_is_one_line() -> None:
    out = io.StringIO()
    times = iter([100.0, 112.0])
    with Step("build etcd", out, clock=lambda: next(times)):
        pass
    assert out.getvalue() == "✓ build etcd (12 s)\n"


def test_a_failed_step_is_marked() -> None:
    out = io.StringIO()
    with pytest.raises(ZeroDivisionError), Step("divide", out):
        _ = 1 / 0
    assert out.getvalue().startswith("✗ divide")


def test_a_long_step_shows_signs_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SPINNER_INTERVAL_SECONDS", 0.001)
    out = Terminal()
    with Step("build", out, clock=lambda: 7.0) as step:
        step.detail("12 packages")
        while "12 packages" not in out.getvalue():
            pass
    assert out.getvalue().endswith("✓ build (0.0 s)\n")


def test_a_failing_program_is_quoted() -> None:
    with pytest.raises(DevclusterError, match=r"failed with 3:\n  the reason"):
        run(["bash", "-c", "echo the reason >&2; exit 3"])
    with pytest.raises(DevclusterError, match="no-such-program is not installed"):
        run(["no-such-program"])


def test_a_long_program_is_followed_line_by_line() -> None:
    seen: list[str] = []
    follow(["bash", "-c", "echo one; echo two >&2"], seen.append)
    assert seen == ["one", "two"]


SECOND = """
import sys
from pathlib import Path
from devcluster.lock import exclusive
print("before", flush=True)
with exclusive(Path(sys.argv[1]), "test"):
    print(Path(sys.argv[2]).read_text(), flush=True)
"""


def test_a_second_invocation_waits_for_the_first(tmp_path: Path) -> None:
    lock, note = tmp_path / "lock", tmp_path / "note"
    with exclusive(lock, "test"):
        second = subprocess.Popen(
            [sys.executable, "-c", SECOND, lock, note],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        )
        assert second.stdout is not None
        assert second.stdout.readline() == "before\n"
        note.write_text("written before the lock was released")
    assert second.stdout.read() == "written before the lock was released\n"
    assert second.wait(HANG_SECONDS) == 0


def test_a_lock_in_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DevclusterError, match="cannot open the lock"):
        with exclusive(tmp_path / "file" / "lock", "test"):
            pass
