"""ChildProcess: a program of ours that runs beside us, is told things by lines, and cannot be lost.

A thread starts it and then waits for it: the operating system tells us of its end at once, nothing
polls, and the kernel's parent-death signal, which belongs to the starting thread, is tied to a
thread that lives as long as the child (the child's side is parent_watch.py).
"""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence

_KILLED_FOR_MEMORY = 9


class ChildProcess:
    """`on_exit` is called once, from a thread of ours, after the end; it must not block for long.

    Every method but `start` may be called from any thread."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        on_exit: Callable[[ChildProcess], None],
        *,
        environment: Mapping[str, str] | None = None,
        pass_fds: Sequence[int] = (),
    ) -> None:
        """name: for people, such as "the engine process". environment: the whole of it; None for
        ours. pass_fds: file descriptors that it inherits under the same numbers."""
        self._name = name
        self._command = list(command)
        self._on_exit = on_exit
        self._environment = environment
        self._pass_fds = tuple(pass_fds)
        self._process: subprocess.Popen[bytes] | None = None
        self._failure: OSError | None = None
        self._spawned = threading.Event()
        self._lock = threading.Lock()  # of its standard input
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Returns when it runs, or could not be started: that is an end like any other."""
        self._thread.start()
        self._spawned.wait()

    @property
    def pid(self) -> int | None:
        """None if it could not be started."""
        return None if self._process is None else self._process.pid

    @property
    def returncode(self) -> int | None:
        """None while it runs; negative: the signal that killed it."""
        if self._failure is not None:
            return 1
        return None if self._process is None else self._process.returncode

    @property
    def last_words(self) -> str:
        """How it ended, for people."""
        if self._failure is not None:
            return f"{self._name} could not be started: {self._failure}"
        who, code = f"{self._name} (pid {self.pid})", self.returncode
        if code is not None and code < 0:
            hint = " (out of memory?)" if -code == _KILLED_FOR_MEMORY else ""
            return f"{who} was killed by signal {-code}{hint}"
        return f"{who} ended with code {code}; see its log above"

    def tell(self, line: bytes) -> None:
        """Write one line to its standard input. If it is gone, its end will tell."""
        with self._lock, contextlib.suppress(OSError, ValueError):
            if self._process is not None and self._process.stdin is not None:
                self._process.stdin.write(line + b"\n")
                self._process.stdin.flush()

    def signal(self, number: int) -> None:
        """Nothing if it has ended."""
        if self._process is not None:
            self._process.send_signal(number)

    def wait(self, timeout_seconds: float) -> bool:
        """Whether it has ended, and its `on_exit` has returned, within that time."""
        self._thread.join(max(0.0, timeout_seconds))
        return not self._thread.is_alive()

    def kill(self) -> None:
        """End it now, whatever it does."""
        if self._process is not None:
            self._process.kill()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                env=self._environment,
                pass_fds=self._pass_fds,
            )
        except OSError as error:
            self._failure = error
        finally:
            self._spawned.set()
        if self._process is not None:
            self._process.wait()
            with self._lock, contextlib.suppress(OSError):
                assert self._process.stdin is not None
                self._process.stdin.close()
        self._on_exit(self)
