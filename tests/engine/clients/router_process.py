"""A published router as a process before servers."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.engine.agents.session import check_installed
from tests.support.server.server_process import reserved_port
from tools.pinned_environments import ROUTERS, python_bin


@contextlib.contextmanager
def router_process(command: Sequence[str], folder: Path) -> Iterator[str]:
    """Start a router that looks at its servers every second, and yield its URL, which may not
    answer yet. command: a program of the routers' environment and its words."""
    program, *words = command
    path = python_bin(ROUTERS) / program
    check_installed(path)
    words += ["--health-check-interval-secs", "1", "--health-failure-threshold", "1"]
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    with reserved_port() as port, reserved_port() as metrics, (folder / "log").open("w") as log:
        words += ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(metrics)]
        process = subprocess.Popen(
            [path, *words], cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()
            process.wait()
