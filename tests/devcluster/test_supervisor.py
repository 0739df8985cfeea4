"""The supervisor keeps components running, in order. It runs here as an ordinary process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from devcluster.node.components import Component, Probe
from devcluster.settings import REPOSITORY
from devcluster.supervisor import LAST_BACKOFF_SECONDS, STEADY_SECONDS, next_backoff
from tests.support import waiting
from tests.support.waiting import HANG_SECONDS

RUN = (
    "import json, sys; from devcluster.supervisor import Supervisor;"
    "Supervisor(json.load(open(sys.argv[1]))).run()"
)
FOREVER = (sys.executable, "-c", "import signal; signal.pause()")


@contextmanager
def supervised(folder: Path, components: list[Component]) -> Iterator[subprocess.Popen[bytes]]:
    (folder / "log").mkdir()
    plan = {
        "state": str(folder),
        "pki": str(folder),
        "components": [c.as_json() for c in components],
    }
    (folder / "plan.json").write_text(json.dumps(plan))
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, str(folder / "plan.json")],
        env=environment,
        stdout=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        for entry in report(folder).values():
            if entry["pid"]:
                os.kill(entry["pid"], signal.SIGKILL)
        process.kill()
        process.wait()


def report(folder: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((folder / "components.json").read_text()))
    except FileNotFoundError:
        return {}


def wait_until(condition: Callable[[], bool]) -> None:
    waiting.wait_until(condition, "what this test waits for", HANG_SECONDS)


def test_a_killed_component_is_started_again(tmp_path: Path) -> None:
    with supervised(tmp_path, [Component("one", FOREVER)]):
        wait_until(lambda: report(tmp_path).get("one", {}).get("ready", False))
        first = report(tmp_path)["one"]["pid"]
        os.kill(first, signal.SIGKILL)
        wait_until(
            lambda: report(tmp_path)["one"]["restarts"] == 1 and report(tmp_path)["one"]["ready"]
        )
        again = report(tmp_path)["one"]
        assert again["pid"] != first
        assert again["last_exit"] == "SIGKILL"


def test_a_component_waits_for_the_probe_of_what_it_comes_after(
    tmp_path: Path, socket_folder: Path
) -> None:
    socket_path = socket_folder / "socket"
    slow = (
        sys.executable,
        "-c",
        "import os, signal, socket, sys; os.read(os.open(sys.argv[1], os.O_RDONLY), 1);"
        "s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[2]); s.listen(); signal.pause()",
        str(tmp_path / "gate"),
        str(socket_path),
    )
    os.mkfifo(tmp_path / "gate")
    first = Component("first", slow, probe=Probe("unix", str(socket_path)))
    with supervised(tmp_path, [first, Component("second", FOREVER, after=("first",))]):
        wait_until(lambda: bool(report(tmp_path).get("first", {}).get("pid")))
        assert report(tmp_path)["second"]["pid"] is None
        (tmp_path / "gate").write_text("x")
        wait_until(lambda: report(tmp_path)["second"]["ready"])
        assert report(tmp_path)["first"]["ready"]


def test_a_program_that_is_missing_is_reported_and_the_others_run(tmp_path: Path) -> None:
    with supervised(
        tmp_path, [Component("bad", ("/nonexistent/program",)), Component("good", FOREVER)]
    ):
        wait_until(lambda: report(tmp_path).get("good", {}).get("ready", False))
        assert "cannot start" in report(tmp_path)["bad"]["last_exit"]


def test_sigterm_ends_the_supervisor(tmp_path: Path) -> None:
    with supervised(tmp_path, [Component("one", FOREVER)]) as process:
        wait_until(lambda: report(tmp_path).get("one", {}).get("ready", False))
        process.terminate()
        assert process.wait(HANG_SECONDS) == 0


def test_the_pause_before_a_restart_grows_to_a_limit_and_is_forgotten() -> None:
    pauses = [0.0]
    for _ in range(10):
        pauses.append(next_backoff(pauses[-1], lived_seconds=0.1))
    assert pauses == sorted(pauses)
    assert pauses[-1] == LAST_BACKOFF_SECONDS
    assert next_backoff(LAST_BACKOFF_SECONDS, STEADY_SECONDS) == 0.0


def test_a_neighbour_that_is_asked_for_later_runs_beside_the_others(tmp_path: Path) -> None:
    def ask(*argv: str) -> None:
        specs = [Component("two", argv).as_json()]
        (tmp_path / "neighbours.json").write_text(json.dumps(specs))
        process.send_signal(signal.SIGHUP)

    def ready(name: str) -> bool:
        return bool(report(tmp_path).get(name, {}).get("ready", False))

    with supervised(tmp_path, [Component("one", FOREVER)]) as process:
        wait_until(lambda: ready("one"))
        before = report(tmp_path)["one"]
        ask(*FOREVER)
        wait_until(lambda: ready("two"))
        first = report(tmp_path)["two"]["pid"]
        ask(*FOREVER, "otherwise")
        wait_until(lambda: ready("two") and report(tmp_path)["two"]["pid"] != first)
        assert report(tmp_path)["one"] == before
