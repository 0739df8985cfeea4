"""Shells complete commands, flags and their values."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from atom.entrypoints.cli import SHELLS, main
from tests.support.server.server_process import command_environment
from tests.support.waiting import HANG_SECONDS


def words_for(line: str, folder: Path) -> list[str]:
    """What a shell is told when this line is to be completed."""
    answer = folder / "words"
    asked = {
        "_ARGCOMPLETE": "1", "_ARGCOMPLETE_STDOUT_FILENAME": str(answer), "_ARGCOMPLETE_IFS": "\n",
        "COMP_LINE": line, "COMP_POINT": str(len(line)), "COMP_TYPE": "9",
    }  # fmt: skip
    command = [sys.executable, "-m", "atom.entrypoints.cli"]
    environment = {**command_environment(), **asked}
    subprocess.run(command, env=environment, check=False, capture_output=True, timeout=HANG_SECONDS)
    return [word.strip() for word in answer.read_text().split("\n")]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("atom se", ["serve"]),
        ("atom serve --max-num", ["--max-num-seqs", "--max-num-batched-tokens"]),
        ("atom serve m --reasoning-parser q", ["qwen3"]),
    ],
)
def test_words_are_completed(line: str, expected: list[str], tmp_path: Path) -> None:
    assert words_for(line, tmp_path) == expected


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_is_given_its_code(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert "atom" in capsys.readouterr().out
