"""A program that prints its own state: `python -m tests.support.preloaded.echo`, for the tests of
copies. It ends as `--end` says."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import threading
from pathlib import Path

import psutil

from tests.support.processes import command_of

_ENDS = {"raise", "killed", "quiet"}


def main() -> int | str | None:
    state = {
        "arguments": sys.argv[1:],
        "command": command_of(psutil.Process()).split(),
        "parent": os.getppid(),
        "group": os.getpgid(0),
        "environment": _environment(),
        "folder": str(Path.cwd()),
        "files": sorted(int(entry.name) for entry in Path("/proc/self/fd").iterdir())[:3],
        "inherited": sorted(_inherited()),
        "open_files": resource.getrlimit(resource.RLIMIT_NOFILE),
        "niceness": os.nice(0),
        "input": sys.stdin.readline(),
        "threads": threading.active_count(),
        "main": threading.current_thread() is threading.main_thread(),
        "signals": {int(each): str(signal.getsignal(each)) for each in _signals()},
        "mask": os.umask(0o022),
    }
    print(json.dumps(state))
    print("an error", file=sys.stderr)
    end = sys.argv[sys.argv.index("--end") + 1] if "--end" in sys.argv else "0"
    if end == "killed":
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    if end == "raise":
        raise ValueError("as it was told")
    if end == "quiet":
        return None
    return int(end) if end.isdigit() else end


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}


def _inherited() -> list[str]:
    """The files that have a name, behind the standard ones."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = str(entry.readlink())
        except OSError:
            continue
        if int(entry.name) > 2 and target.startswith("/tmp"):
            found.append(f"{entry.name}: {target}")
    return found


def _signals() -> set[signal.Signals]:
    return {
        each
        for each in signal.valid_signals()
        if isinstance(each, signal.Signals) and each not in (signal.SIGKILL, signal.SIGSTOP)
    }


if __name__ == "__main__":
    sys.exit(main())
