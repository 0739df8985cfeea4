"""`kubectl atom logs`: lines as they come, errors in our words, and an end with its reader.

A shell script answers in kubectl's place.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import psutil
import pytest
import yaml

from tests.support.processes import has_ended
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[3]
LINE = "[pod/chat-1/engine] it: loads"
# What the plug-in asks before it comes to the logs.
KUBECTL = """#!/bin/sh
case "$*" in
  *"get atomdeployments"*) echo '{"kind": "AtomDeployment"}' ;;
  *"get pods"*) echo '{"items": [{}]}' ;;
  *logs*) LOGS ;;
esac
"""
WRITES = f"echo '{LINE}'; echo '{LINE}'"
WAITS = f"echo $$ >pid; echo '{LINE}'; exec sleep 600"  # a pod that says no more
REFUSES = (
    'echo \'Error from server (BadRequest): container "engine" in pod "chat-1" is waiting to '
    "start: ContainerCreating' >&2; exit 1"
)


def command(folder: Path, logs: str, *arguments: str) -> tuple[list[str], dict[str, str]]:
    """The plug-in's command line and environment, with a kubectl that writes such logs."""
    script = folder / "kubectl"
    script.write_text(KUBECTL.replace("LOGS", logs))
    script.chmod(0o755)
    paths = os.pathsep.join([str(ROOT / "operator"), str(ROOT / "engine")])
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    words = [sys.executable, "-m", "atom_operator.kubectl_atom", "-n", "team", "logs", "chat"]
    return [*words, *arguments], {**os.environ, "PATH": path, "PYTHONPATH": paths}


def run(folder: Path, logs: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    words, environment = command(folder, logs, *arguments)
    return subprocess.run(
        words, env=environment, cwd=folder, capture_output=True, text=True, check=False
    )


def test_lines_are_as_kubectl_writes_them_or_documents(tmp_path: Path) -> None:
    assert run(tmp_path, WRITES).stdout == f"{LINE}\n{LINE}\n"
    wanted = [{"pod": "chat-1", "container": "engine", "message": "it: loads"}] * 2
    as_json = run(tmp_path, WRITES, "-o", "json").stdout.splitlines()
    assert [json.loads(line) for line in as_json] == wanted
    assert list(yaml.safe_load_all(run(tmp_path, WRITES, "-o", "yaml").stdout)) == wanted


@pytest.mark.sampled(1)
@pytest.mark.parametrize("output", ["text", "json", "yaml"])
def test_what_kubectl_refuses_is_one_line_in_our_words(tmp_path: Path, output: str) -> None:
    done = run(tmp_path, REFUSES, "-o", output)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert "waiting to start: ContainerCreating" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.sampled(1)
@pytest.mark.parametrize("output", ["text", "json", "yaml"])
def test_kubectl_ends_with_the_plug_in_though_its_pod_is_quiet(tmp_path: Path, output: str) -> None:
    words, environment = command(tmp_path, WAITS, "--follow", "-o", output)
    process = subprocess.Popen(
        words, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        # A run in the background of a shell ignores Ctrl-C, and its processes would, too.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline()
    kubectl = psutil.Process(int((tmp_path / "pid").read_text()))
    process.send_signal(signal.SIGINT)  # Ctrl-C
    assert process.wait(timeout=60) == 130
    wait_until(lambda: has_ended(kubectl), "kubectl ends, too")
