"""A program that is started without standard streams gives their descriptors to nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from tests.support.server.server_process import command_environment
from tests.support.waiting import HANG_SECONDS

REDIRECTIONS = ("<&-", ">&-", "2>&-")
SCRIPT = """
import json, os, socket, subprocess, sys
from atom.entrypoints.process.process_conduct import open_standard_streams
open_standard_streams()
print("words")
print("words", file=sys.stderr)
with socket.socket() as opened:
    child = "import os; [os.fstat(each) for each in range(3)]"
    code = subprocess.run([sys.executable, "-c", child]).returncode
    answer = {"socket": opened.fileno(), "child": code, "read": sys.stdin.read()}
with open(sys.argv[1], "w") as file:
    json.dump(answer, file)
"""


@pytest.mark.parametrize(
    "closed", [each for each in product((True, False), repeat=3) if any(each)], ids=str
)
def test_each_missing_stream_is_dev_null(tmp_path: Path, closed: tuple[bool, ...]) -> None:
    streams = " ".join(
        each for each, is_closed in zip(REDIRECTIONS, closed, strict=True) if is_closed
    )
    answer = tmp_path / "answer"
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {streams}', "sh", sys.executable, "-c", SCRIPT, str(answer)],
        env=command_environment(),
        input="" if closed[0] else "asked",
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=True,
    )
    found = json.loads(answer.read_text())
    assert found["socket"] > 2
    assert found["child"] == 0
    assert found["read"] == ("" if closed[0] else "asked")
    assert done.stdout == ("" if closed[1] else "words\n")
    assert done.stderr == ("" if closed[2] else "words\n")
