"""A further node of a group, as its users start it: `atom serve --node-rank 1`, on this machine."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from atom.config import NodePlace
from tests.support.processes import children_that_run, kill_all_below
from tests.support.server.server_process import command_environment
from tests.support.waiting import HANG_SECONDS, wait_until


@dataclass
class FurtherNode:
    process: subprocess.Popen[bytes]
    log_path: Path

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    def node_process(self) -> psutil.Process:
        """What speaks with the first node."""
        return _child(psutil.Process(self.process.pid), "node_main")

    def rank_process(self) -> psutil.Process:
        return _child(self.node_process(), "rank_main")

    def core_processes(self) -> list[psutil.Process]:
        """In the order of their ranks."""
        return _children(self.node_process(), "core_main")

    def wait_exit(self) -> int:
        return self.process.wait(HANG_SECONDS)


def _child(parent: psutil.Process, module: str) -> psutil.Process:
    return _children(parent, module)[0]


def _children(parent: psutil.Process, module: str) -> list[psutil.Process]:
    found: list[psutil.Process] = []

    def is_found() -> bool:
        found[:] = children_that_run(module, parent.pid)
        return bool(found)

    wait_until(is_found, f"a process {module}")
    return sorted(found, key=lambda process: process.pid)


@contextlib.contextmanager
def further_node(
    model: str, place: NodePlace, log_path: Path, *flags: str, environment: Mapping[str, str] = {}
) -> Iterator[FurtherNode]:
    """Started; killed at the end with what it started if it still runs. flags: what is divided; the
    device is the first node's choice."""
    command = [sys.executable, "-m", "atom.entrypoints.openai_server", "--model", model]
    command += ["--device", "cpu", *flags]
    command += ["--nnodes", str(place.count), "--node-rank", str(place.rank)]
    command += ["--master-addr", place.address, "--master-port", str(place.port)]
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            command,
            env={**command_environment(), **environment},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        yield FurtherNode(process, log_path)
    finally:
        kill_all_below(process.pid)
        process.kill()
        process.wait()
