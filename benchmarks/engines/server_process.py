"""A server process for benchmarks: started on a free port, ready when the context is entered.

Ends with SIGTERM at the end of the context, and is killed if it does not. Options are the fields of
`EngineOptions`, so that the same dict makes an offline engine.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

START_SECONDS = 300.0
_END_SECONDS = 60.0
_POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Server:
    process_id: int
    port: int

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def flags_of(options: Mapping[str, Any]) -> list[str]:
    """Write options as flags: {"dtype": "float32", "load_dummy": True, "x": False} → --dtype
    float32 --load-dummy --no-x."""
    flags = []
    for name, value in options.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            flags += [f"--{flag}", str(value)]
    return flags


@contextlib.contextmanager
def started_server(
    model: Path,
    options: Mapping[str, Any],
    *flags: str,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Server]:
    """Start a server process. flags: of the server itself; environment: beside this process's. The
    served model's name is "bench"."""
    own = ["--model", str(model), "--served-model-name", "bench", *flags_of(options), *flags]
    with started("atom.entrypoints.openai_server", *own, environment=environment) as server:
        yield server


@contextlib.contextmanager
def started(
    module: str, *arguments: str, environment: Mapping[str, str] | None = None
) -> Iterator[Server]:
    """Start a module of the server's, with these arguments and a free port."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    where = ["--host", "127.0.0.1", "--server-port", str(port)]
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments, *where],
        env={**os.environ, **(environment or {})},
    )
    server = Server(process.pid, port)
    try:
        _wait_ready(process, server.address)
        yield server
    finally:
        end(process, _END_SECONDS)


def end(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Ask it to end, and kill it if it has not after so long."""
    process.terminate()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _wait_ready(process: subprocess.Popen[bytes], address: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        with contextlib.suppress(urllib.error.URLError, ConnectionError):
            urllib.request.urlopen(f"{address}/health", timeout=5).close()
            return
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"the server was not ready within {START_SECONDS:g} s; see above")
        time.sleep(_POLL_SECONDS)  # between two looks at another process
