"""A server that the operating system gives too little says so in a line, with the remedy."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.models.tiny_model import make_tiny_checkpoint
from tests.support.server.server_process import START_SECONDS, command_environment


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("tiny") / "qwen3", layers=1)


@pytest.mark.parametrize(
    ("limit", "told"),
    [
        ("ulimit -n 24", ("may have 24 files open", "ulimit -n 65536", "LimitNOFILE")),
        ("ulimit -v 2000000", ("no more memory", "limited to 1.9 GiB", "ulimit -v unlimited")),
    ],
)
def test_what_is_short_is_told_with_its_remedy(
    checkpoint: Path, limit: str, told: tuple[str, ...]
) -> None:
    words = (
        sys.executable, "-m", "atom.entrypoints.cli", "serve", "--model", str(checkpoint),
        "--device", "cpu", "--host", "127.0.0.1", "--port", "0",
    )  # fmt: skip
    ended = subprocess.run(
        ["bash", "-c", f"{limit}; exec {shlex.join(words)}"],
        env=command_environment(), capture_output=True, text=True, timeout=START_SECONDS,
        check=False,
    )  # fmt: skip
    assert ended.returncode == 1
    assert "Traceback" not in ended.stderr
    last = ended.stderr.strip().splitlines()[-1]
    assert last.startswith("error: ")
    for each in told:
        assert each in last
