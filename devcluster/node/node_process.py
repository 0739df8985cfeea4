"""Starts, finds and ends the node process: the supervisor in its own mount, network and process
namespaces.

The process is found by its exact command line, which names the state folder, so that no recorded id
can be stale. Ending it ends everything in the cluster at once: the kernel kills what is left of a
process namespace whose first process is gone, pods and containerd's shims included.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from devcluster.errors import DevclusterError
from devcluster.settings import REPOSITORY, Settings

SUPERVISOR = ("-m", "devcluster.supervisor")
END_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Node:
    """`pid` is the supervisor, as the host counts."""

    pid: int


def find(settings: Settings) -> Node | None:
    """The running node process of this state folder."""
    return next(
        (Node(pid) for pid in _supervisors(settings) if _in_other_process_namespace(pid)), None
    )


def _supervisors(settings: Settings) -> Iterator[int]:
    """The supervisor and the `unshare` that started it: both have the supervisor's arguments at the
    end of theirs.
    """
    wanted = [*SUPERVISOR, str(settings.plan_file)]
    for pid in _all_pids():
        if _arguments(pid)[-len(wanted) :] == wanted:
            yield pid


def any_running() -> bool:
    """Return whether a cluster of any state folder runs on this machine."""
    return any(list(SUPERVISOR) == _arguments(pid)[-3:-1] for pid in _all_pids())


def _all_pids() -> Iterator[int]:
    yield from (int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal())


def _arguments(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").rstrip("\0").split("\0")
    except OSError:
        return []


def _namespace(pid: int | str) -> Path:
    return Path(f"/proc/{pid}/ns/pid").readlink()


def _in_other_process_namespace(pid: int) -> bool:
    try:
        return _namespace(pid) != _namespace("self")
    except OSError:
        return False


def host_pids(node: Node) -> dict[int, int]:
    """Map every process in the node's own process namespace: its number there → its number on the
    host."""
    namespace = _namespace(node.pid)
    found = {}
    for pid in _all_pids():
        try:
            if _namespace(pid) != namespace:
                continue
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            continue
        numbers = next(line for line in status.splitlines() if line.startswith("NSpid:")).split()[
            1:
        ]
        found[int(numbers[-1])] = pid
    return found


@dataclass(frozen=True, slots=True)
class Starting:
    """A node process that has its private mounts and waits for its network; it ends if this handle
    is dropped.
    """

    node: Node
    process: subprocess.Popen[str]

    def release(self) -> None:
        """Tells the node process that its network is there."""
        assert self.process.stdin is not None
        self.process.stdin.write("start\n")
        self.process.stdin.close()


def start(settings: Settings) -> Starting:
    """Spawns the node process; `release` must follow."""
    namespaces = [
        "--mount",
        "--propagation=slave",
        "--net",
        "--pid",
        "--fork",
        "--kill-child=SIGKILL",
        "--mount-proc",
    ]
    command = ["unshare", *namespaces, "--", sys.executable, *SUPERVISOR, str(settings.plan_file)]
    log_path = settings.logs / "supervisor.log"
    with log_path.open("a+") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
            cwd="/",
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTHONUNBUFFERED": "1"},
            start_new_session=True,
        )
    node = _wait_for_child(process)
    if node is None:
        process.wait()
        raise DevclusterError(
            "the node process could not start: "
            f"{log_path.read_text().strip()[-600:] or 'no output'}"
        )
    return Starting(node, process)


def _wait_for_child(process: subprocess.Popen[str]) -> Node | None:
    """The supervisor: the only child of `unshare`, there as soon as it has forked."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    poller = select.poll()
    descriptor = os.pidfd_open(process.pid)
    poller.register(descriptor, select.POLLIN)
    try:
        while not poller.poll(10):
            pids = children.read_text().split()
            if pids and _arguments(int(pids[0]))[:1] == [sys.executable]:
                return Node(int(pids[0]))
        return None
    finally:
        os.close(descriptor)


def end(settings: Settings) -> bool:
    """Ends the node process and with it all that runs in the cluster; False when none was there."""
    pids = sorted(_supervisors(settings), key=_in_other_process_namespace, reverse=True)
    for pid in pids:
        _kill_and_wait(pid)
    return bool(pids)


def _kill_and_wait(pid: int) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        os.kill(pid, 9)
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        if not poller.poll(END_SECONDS * 1000):
            raise DevclusterError(
                f"process {pid} of the cluster did not end within {END_SECONDS:.0f} s of a "
                f"SIGKILL; look at it with `ps -o stat,wchan {pid}`"
            )
    except ProcessLookupError:
        return
    finally:
        os.close(descriptor)
