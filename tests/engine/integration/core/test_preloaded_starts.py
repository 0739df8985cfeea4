"""Copies of a preloaded process, which tests start in place of new ones, are like new ones."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.models.tiny_model import make_tiny_checkpoint
from tests.support.preloaded import starts
from tests.support.processes import children_of, children_that_run
from tests.support.server.server_process import server_process
from tests.support.waiting import HANG_SECONDS, wait_until

ROOT = Path(__file__).resolve().parents[4]
ECHO = "tests.support.preloaded.echo"


def echo(*words: str, copied: bool, **options: Any) -> dict[str, Any]:
    """What a program sees of itself that is started as a copy, or anew."""
    starts.pause(not copied)
    before = starts.copies()
    try:
        done = subprocess.run(
            [sys.executable, "-m", ECHO, *words],
            input="line\n", capture_output=True, text=True, check=False, **options,
        )  # fmt: skip
    finally:
        starts.pause(False)
    assert starts.copies() - before == copied
    seen: dict[str, Any] = json.loads(done.stdout)
    return seen | {"stderr": done.stderr, "code": done.returncode}


@pytest.fixture
def inherited(tmp_path: Path) -> Any:
    with (tmp_path / "inherited").open("w") as file:
        yield file


def test_a_copy_sees_of_itself_what_a_new_process_does(tmp_path: Path, inherited: Any) -> None:
    options: Mapping[str, Any] = {
        "cwd": tmp_path,
        "env": {**os.environ, "ATOM_NEW": "a value", "PYTHONPATH": str(ROOT)},
        "pass_fds": [inherited.fileno()],
    }
    new, copy = [echo("two words", "--x", copied=way, **options) for way in (False, True)]
    assert copy == new
    assert new["parent"] == os.getpid()
    assert new["environment"]["ATOM_NEW"] == "a value"


@pytest.mark.parametrize("end", ["0", "3", "a sentence", "raise", "killed", "quiet"])
def test_a_copy_ends_as_a_new_process_does(end: str) -> None:
    new, copy = [echo("--end", end, copied=way) for way in (False, True)]
    assert copy["code"] == new["code"]
    assert copy["stderr"].splitlines()[-1:] == new["stderr"].splitlines()[-1:]


def test_what_a_copy_cannot_have_is_started_anew() -> None:
    assert echo(copied=False, env={**os.environ, "HF_HOME": "/elsewhere"})["code"] == 0
    assert echo(copied=False, start_new_session=True)["code"] == 0


def test_a_servers_engine_is_its_child_and_ends_with_it(tmp_path: Path) -> None:
    model = make_tiny_checkpoint(tmp_path / "model")
    before = starts.copies()
    with server_process(model, tmp_path / "log") as server:
        server.wait_ready()
        assert starts.copies() == before + 1
        assert server.process.pid in [child.pid for child in children_of()]
        engine = server.engine_process()
        assert engine in children_of(server.process.pid)
        server.signal(signal.SIGKILL)
        assert server.wait_exit() == -signal.SIGKILL
        wait_until(lambda: not engine.is_running(), "the engine has ended", HANG_SECONDS)
    assert not children_that_run("core_main", recursive=True)
