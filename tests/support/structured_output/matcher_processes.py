"""The processes of structured output that a test has started, told apart."""

from __future__ import annotations

import psutil


def compile_servers() -> list[psutil.Process]:
    """Without the processes that they fork."""
    return [process for process in _all() if not _is_one(process.parent())]


def matcher_processes() -> list[psutil.Process]:
    """What the compile servers have forked, oldest first: those that follow grammars, and those
    that compile one just now."""
    forked = [process for process in _all() if _is_one(process.parent())]
    return sorted(forked, key=lambda process: process.create_time())


def _all() -> list[psutil.Process]:
    return [child for child in psutil.Process().children(recursive=True) if _is_one(child)]


def _is_one(process: psutil.Process | None) -> bool:
    try:
        return process is not None and "compile_server" in " ".join(process.cmdline())
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return False
