"""The end of a process that loaded torch: everything but the interpreter's own taking apart."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import atexit, sys
from atom.utils.process_end import end_process

class Kept:
    def __del__(self):
        print("taken apart")

kept = Kept()
kept.itself = kept  # so that the interpreter's own end would collect it
atexit.register(print, "exit function")
print("a line that is still in the buffer")
print("an error", file=sys.stderr)
end_process(int(sys.argv[1]))
"""
BUFFERED = {**os.environ, "PYTHONUNBUFFERED": ""}


@pytest.mark.parametrize("code", [0, 3])
def test_exit_functions_run_and_buffers_are_written_and_nothing_is_freed(code: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(code)],
        env=BUFFERED,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code
    assert done.stdout.splitlines() == ["a line that is still in the buffer", "exit function"]
    assert done.stderr == "an error\n"


def test_a_reader_that_has_gone_changes_no_exit_code() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "3"],
        env=BUFFERED,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait() == 3
