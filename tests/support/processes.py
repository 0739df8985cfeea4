"""Processes that a test has started, read while any of them may end.

A process that is listed may be gone when its command is read. What asks here sees such a one as
ended; psutil would raise, once in some thousand runs.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import psutil

_GONE = (psutil.NoSuchProcess, psutil.ZombieProcess)


def command_of(process: psutil.Process | None) -> str:
    """The words of its command line; none of a process that has ended."""
    try:
        return "" if process is None else " ".join(process.cmdline())
    except _GONE:
        return ""


def children_of(pid: int | None = None, *, recursive: bool = False) -> list[psutil.Process]:
    """Processes below one, by default below this one; none below one that has ended."""
    try:
        return psutil.Process(pid or os.getpid()).children(recursive=recursive)
    except _GONE:
        return []


def children_that_run(
    word: str, pid: int | None = None, *, recursive: bool = False
) -> list[psutil.Process]:
    """Those of `children_of` that have not ended and have the word in their command line."""
    return [child for child in children_of(pid, recursive=recursive) if word in command_of(child)]


def parent_runs(process: psutil.Process, word: str) -> bool:
    """Whether the process that started this one has not ended and has the word in its command."""
    try:
        return word in command_of(process.parent())
    except _GONE:
        return False


def has_ended(process: psutil.Process) -> bool:
    """Whether it is gone, or dead and not yet waited for."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except _GONE:
        return True


@contextlib.contextmanager
def standing_still(word: str) -> Iterator[None]:
    """The children that run with this word do nothing meanwhile."""
    found = children_that_run(word)
    for child in found:
        child.suspend()
    try:
        yield
    finally:
        for child in found:
            child.resume()


def kill_all_below(pid: int) -> None:
    """Kill every process below one, those too that are listed behind one that has just ended."""
    for child in children_of(pid, recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
