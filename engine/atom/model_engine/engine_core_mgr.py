"""CoreManager: starts the engine process, routes requests to it, watches it, fans its output in.

Torch-free; lives in the API server (or the offline LLMEngine). Sockets are ipc files in a folder
only this user can enter. Events are delivered from the manager's own thread. A process that dies
is noticed at once (the operating system tells us) and reported once, with its own last words.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import zmq

from atom.config import Config
from atom.model_engine.engine_protocol import (
    AbortBody,
    AddBody,
    EngineReport,
    ExecutorFailedBody,
    ProgressBody,
    ShutdownBody,
    StatsBody,
    StreamBody,
    UtilityBody,
    UtilityResponseBody,
    decode,
    encode,
)
from atom.model_engine.request import Request

logger = logging.getLogger(__name__)

_CORE_MODULE = "atom.model_engine.core_main"
_IDENTITY = "rank-0"


@dataclass(frozen=True, slots=True)
class CoreFailed:
    """The engine process is dead or could not start; the last event there is."""

    message: str
    user_error: bool


CoreEvent = EngineReport | ProgressBody | StreamBody | StatsBody | UtilityResponseBody | CoreFailed


class CoreManager:
    """One engine process behind its sockets.

    `on_event` is called from the manager's thread and must not block; after CoreFailed, or once
    `shutdown` was called, it is not called again.
    """

    def __init__(self, config: Config, on_event: Callable[[CoreEvent], None]) -> None:
        self._config = config
        self._on_event = on_event
        self._folder = Path(tempfile.mkdtemp(prefix="atom-"))  # created with mode 0700
        self._context = zmq.Context()
        self._send_lock = threading.Lock()
        self._requests = self._bind(zmq.ROUTER, "input")
        self._outputs = self._bind(zmq.PULL, "output")
        # Wakes the output thread: b"exit" when the process ended, b"stop" on shutdown.
        self._wake_reader = self._context.socket(zmq.PULL)
        self._wake_reader.bind("inproc://wake")
        self._process: subprocess.Popen[bytes] | None = None
        self._threads: list[threading.Thread] = []
        self._closing = threading.Event()

    def _bind(self, kind: int, name: str) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.setsockopt(zmq.LINGER, 0)
        socket.bind(f"ipc://{self._folder / name}")
        return socket

    # ---- calls --------------------------------------------------------------------------------

    def start(self) -> None:
        """Spawn the engine process; READY or CoreFailed follows as an event."""
        level = logging.getLevelName(logging.getLogger().getEffectiveLevel())
        command = [sys.executable, "-m", _CORE_MODULE]
        command += [f"ipc://{self._folder / name}" for name in ("input", "output")]
        self._process = subprocess.Popen([*command, _IDENTITY, level], stdin=subprocess.PIPE)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # died already: the watcher will say so
            self._process.stdin.write(self._config.to_json() + b"\n")
            self._process.stdin.flush()
        for name, target in (("core-watch", self._watch), ("core-output", self._read_outputs)):
            thread = threading.Thread(target=target, name=name, daemon=True)
            thread.start()
            self._threads.append(thread)

    @property
    def process_id(self) -> int | None:
        return None if self._process is None else self._process.pid

    def add_requests(self, requests: Sequence[Request]) -> None:
        self._send(AddBody(requests=list(requests)))

    def abort_requests(self, request_ids: Sequence[int]) -> None:
        self._send(AbortBody(request_ids=list(request_ids)))

    def call_utility(self, call_id: int, method: str) -> None:
        """Ask the core to run a utility; the answer comes as a UtilityResponseBody event."""
        self._send(UtilityBody(call_id=call_id, method=method))

    def shutdown(self, timeout_seconds: float = 10.0) -> None:
        """Ask the core to end, then make it; close everything. May be called again."""
        if self._closing.is_set():
            return
        self._closing.set()
        process = self._process
        if process is not None:
            self._send(ShutdownBody())
            try:
                process.wait(timeout_seconds)
            except subprocess.TimeoutExpired:
                logger.warning(
                    "the engine process did not end in %.0f s; killing it", timeout_seconds
                )
                process.kill()
                process.wait()
            assert process.stdin is not None
            process.stdin.close()
            self._wake(b"stop")
        for thread in self._threads:
            thread.join()
        for socket in (self._requests, self._outputs, self._wake_reader):
            socket.close(linger=0)
        self._context.term()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _send(self, body: AddBody | AbortBody | UtilityBody | ShutdownBody) -> None:
        with self._send_lock:
            # A ROUTER drops what it cannot route; a dead core is reported by the watcher.
            self._requests.send_multipart([_IDENTITY.encode(), *encode(body)])

    # ---- threads ------------------------------------------------------------------------------

    def _watch(self) -> None:
        assert self._process is not None
        self._process.wait()
        self._wake(b"exit")

    def _wake(self, reason: bytes) -> None:
        with self._context.socket(zmq.PUSH) as socket:
            socket.setsockopt(zmq.LINGER, 1000)
            socket.connect("inproc://wake")
            socket.send(reason)

    def _read_outputs(self) -> None:
        poller = zmq.Poller()
        poller.register(self._outputs, zmq.POLLIN)
        poller.register(self._wake_reader, zmq.POLLIN)
        while True:
            ready = dict(poller.poll())
            while self._outputs.poll(0):
                if not self._deliver(decode(self._outputs.recv_multipart())):
                    return
            if self._wake_reader in ready:
                if self._wake_reader.recv() == b"exit" and not self._closing.is_set():
                    assert self._process is not None
                    self._on_event(CoreFailed(_last_words(self._process), user_error=False))
                return

    def _deliver(self, message: object) -> bool:
        """Hand one message on; False after the last one."""
        if self._closing.is_set():
            return True
        if isinstance(message, ExecutorFailedBody):
            self._on_event(CoreFailed(message.message, message.user_error))
            return False
        self._on_event(message)  # type: ignore[arg-type]  # decode() yields BODY_TYPES only
        return True


def _last_words(process: subprocess.Popen[bytes]) -> str:
    code = process.returncode
    if code is not None and code < 0:
        return f"the engine process (pid {process.pid}) was killed by signal {-code}" + (
            " (out of memory?)" if code == -9 else ""
        )
    return f"the engine process (pid {process.pid}) ended with code {code}; see its log above"
