"""ChildProcess: run a program as a child, exchange lines with it, and detect its end.

A thread starts the child and then waits for it, so its end is reported at once, without polling.
The kernel's parent-death signal belongs to the starting thread, which lives as long as the child
(parent_watch.py is the child's side).
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import psutil

_KILLED_FOR_MEMORY = 9
_STOPPED = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)


@dataclass(frozen=True, slots=True)
class Command:
    """A program with its arguments. environment: the whole of it; None for ours. pass_fds: file
    descriptors that it inherits under the same numbers."""

    arguments: Sequence[str]
    environment: Mapping[str, str] | None = None
    pass_fds: Sequence[int] = ()


class ChildProcess:
    """A child process whose end is reported. `on_exit` is called once, from a thread of this class,
    after the end; it must not block for long.

    Every method but `start` may be called from any thread.
    """

    def __init__(
        self,
        name: str,
        command: Command,
        on_exit: Callable[[ChildProcess], None],
        *,
        on_line: Callable[[bytes], None] | None = None,
    ) -> None:
        """name: for people, such as "the engine process". on_line: called from a thread of ours
        with each line of its standard output; None leaves that where ours goes."""
        self.name = name
        self._command = command
        self._on_exit = on_exit
        self._on_line = on_line
        self._process: subprocess.Popen[bytes] | None = None
        self._failure: OSError | None = None
        self._spawned = threading.Event()
        self._lock = threading.Lock()  # of its standard input
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the process; return when it runs or could not be started. A failed start counts as
        an end."""
        self._thread.start()
        self._spawned.wait()

    @property
    def pid(self) -> int | None:
        """Return the process id; None if the process could not be started."""
        return None if self._process is None else self._process.pid

    @property
    def returncode(self) -> int | None:
        """Return the exit code; None while the process runs; negative: the signal that killed
        it."""
        if self._failure is not None:
            return 1
        return None if self._process is None else self._process.returncode

    @property
    def last_words(self) -> str:
        """Return how the process ended, as a message for people."""
        if self._failure is not None:
            return f"{self.name} could not be started: {self._failure}"
        who, code = f"{self.name} (pid {self.pid})", self.returncode
        if code is not None and code < 0:
            hint = " (out of memory?)" if -code == _KILLED_FOR_MEMORY else ""
            return f"{who} was killed by signal {-code}{hint}"
        return f"{who} ended with code {code}; see its log above"

    def is_stopped(self) -> bool:
        """Return whether the operating system has stopped the process, as SIGSTOP and debuggers
        do."""
        if self.pid is None:
            return False
        try:
            return psutil.Process(self.pid).status() in _STOPPED
        except psutil.Error:
            return False

    def tell(self, line: bytes) -> None:
        """Write one line to the child's standard input. If the child has ended, the line is
        dropped: `on_exit` reports the end."""
        with self._lock, contextlib.suppress(OSError, ValueError):
            if self._process is not None and self._process.stdin is not None:
                self._process.stdin.write(line + b"\n")
                self._process.stdin.flush()

    def wait(self, timeout_seconds: float) -> bool:
        """Return whether the process has ended, and its `on_exit` has returned, within that
        time."""
        self._thread.join(max(0.0, timeout_seconds))
        return not self._thread.is_alive()

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal; do nothing if the process is gone."""
        if self._process is not None:
            self._process.send_signal(number)

    def kill(self) -> None:
        """Kill the process immediately, and wait for its `on_exit`."""
        if self._process is not None:
            self._process.kill()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._process = subprocess.Popen(
                self._command.arguments,
                stdin=subprocess.PIPE,
                stdout=None if self._on_line is None else subprocess.PIPE,
                env=self._command.environment,
                pass_fds=tuple(self._command.pass_fds),
            )
        except OSError as error:
            self._failure = error
        finally:
            self._spawned.set()
        if self._process is not None:
            self._attend(self._process)
        self._on_exit(self)

    def _attend(self, process: subprocess.Popen[bytes]) -> None:
        """Read the child's output until it ends."""
        if process.stdout is not None and self._on_line is not None:
            with process.stdout:
                for line in process.stdout:
                    self._on_line(line.rstrip(b"\n"))
        process.wait()
        assert process.stdin is not None
        with self._lock, contextlib.suppress(OSError):
            process.stdin.close()
