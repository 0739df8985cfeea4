"""The real server as its users start it: a process with an engine process behind it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

import atom
from tests.support.processes import children_that_run, kill_all_below
from tests.support.waiting import HANG_SECONDS, wait_until

START_SECONDS = 2 * HANG_SECONDS
SERVED_NAME = "tiny"


def command_environment() -> dict[str, str]:
    """For child processes: our package is importable, and an engine computes with one thread."""
    package_parent = str(Path(atom.__file__).parents[1])
    known = os.environ.get("PYTHONPATH")
    path = package_parent if known is None else os.pathsep.join([package_parent, known])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


def run_atom(*words: str, seconds: float = START_SECONDS) -> subprocess.CompletedProcess[str]:
    """One `atom` command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "atom.entrypoints.cli", *words],
        env=command_environment(),
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )


@dataclass
class ServerProcess:
    process: subprocess.Popen[str]
    port: int
    log_path: Path
    scheme: str = "http"

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=HANG_SECONDS, verify=False)

    # Over connections of their own, and without reading the system's certificates at each call,
    # which takes a polling test half of the core that its server starts on.
    def get(self, path: str) -> httpx.Response:
        return httpx.get(f"{self.url}{path}", timeout=HANG_SECONDS, verify=False)

    def post(self, path: str, **fields: object) -> httpx.Response:
        url = f"{self.url}{path}"
        return httpx.post(url, json=fields, timeout=HANG_SECONDS, verify=False)

    def health(self) -> tuple[int, dict[str, str]]:
        """(0, {}) while nothing listens."""
        try:
            response = self.get("/health")
        except httpx.TransportError:
            return 0, {}
        return response.status_code, response.json()

    def tokenize(self, text: str) -> list[int]:
        answer = self.post("/tokenize", prompt=text)
        tokens: list[int] = answer.json()["tokens"]
        return tokens

    def metric(self, name: str) -> float:
        """The value of a metric, summed over its labels; 0 when it is not there yet."""
        lines = self.get("/metrics").raise_for_status().text.splitlines()
        values = [float(line.split()[-1]) for line in lines if line.startswith(f"atom:{name}{{")]
        return sum(values)

    def wait_ready(self) -> ServerProcess:
        def ready() -> bool:
            assert self.process.poll() is None, self.log
            return self.health()[0] == 200

        wait_until(ready, "the server is ready", START_SECONDS)
        return self

    def engine_process(self) -> psutil.Process:
        (engine,) = self.engine_processes()
        return engine

    def engine_processes(self) -> list[psutil.Process]:
        """One per rank."""
        return children_that_run("atom.model_engine.core_main", self.process.pid)

    def api_processes(self) -> list[psutil.Process]:
        """Those of a server that has several."""
        return children_that_run("atom.entrypoints.server.api_process", self.process.pid)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill_without_notice(self) -> None:
        """End it and its engine at once, as the loss of its pod does."""
        self.signal(signal.SIGSTOP)  # or it would see the end of its engine
        kill_all_below(self.process.pid)
        self.process.kill()
        self.process.wait()

    def wait_exit(self, seconds: float = HANG_SECONDS) -> int:
        return self.process.wait(seconds)


@contextlib.contextmanager
def reserved_port() -> Iterator[int]:
    """A port that no other program is given meanwhile, and that a server can still listen on.

    One that is found free and let go is another's before a server has started, now and then: of
    54,000 ports that the system chose, 11 were such a one. Bound with SO_REUSEADDR, and not
    listening, it is never chosen, and only another that listens would be in a server's way.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield int(holder.getsockname()[1])


# By which servers of a test know each other.
PEERS = {"ATOM_HANDOVER_SECRET": "a-secret-of-the-tests"}


@contextlib.contextmanager
def server_process(
    model: Path | str,
    log_path: Path,
    *flags: str,
    environment: Mapping[str, str] | None = None,
    launcher: Sequence[str] = (),
) -> Iterator[ServerProcess]:
    """Started, not yet ready; killed at the end with its engine if it still runs.

    Told to end, it waits for running requests as long as a test does: on a busy machine an answer
    of thousands of tokens takes longer than a server's own 30 s. A test's own flag comes later and
    is what counts. launcher: a program that becomes the one that its arguments name.
    """
    command = [
        *launcher,
        sys.executable,
        "-m",
        "atom.entrypoints.openai_server",
        "--model",
        str(model),
    ]
    command += ["--served-model-name", SERVED_NAME, "--device", "cpu", "--host", "127.0.0.1"]
    command += ["--drain-seconds", str(HANG_SECONDS)]
    with reserved_port() as port:
        with log_path.open("w") as log:
            process = subprocess.Popen(
                [*command, "--server-port", str(port), *flags],
                env={**command_environment(), **(environment or {})},
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
            )
        try:
            scheme = "https" if "--ssl-certfile" in flags else "http"
            yield ServerProcess(process, port, log_path, scheme)
        finally:
            kill_all_below(process.pid)
            process.kill()
            process.wait()
