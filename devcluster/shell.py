"""Runs other programs and turns their failure into one readable error.

Output is kept, not shown; a failure quotes its last lines, and long steps can follow it line by
line.
"""

from __future__ import annotations

import os
import subprocess
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from devcluster.errors import DevclusterError

TAIL_LINES = 12


def run(
    argv: Sequence[str | Path],
    *,
    stdin: str | None = None,
    timeout_seconds: float = 600,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> str:
    """Standard output of a program that must succeed."""
    command = [str(part) for part in argv]
    try:
        done = subprocess.run(
            command,
            input=stdin,
            capture_output=True,
            encoding="utf-8",
            timeout=timeout_seconds,
            env=dict(env) if env is not None else None,
            cwd=cwd,
            check=False,
        )
    except FileNotFoundError as error:
        raise DevclusterError(f"{command[0]} is not installed or not on PATH") from error
    except subprocess.TimeoutExpired as error:
        raise DevclusterError(
            f"`{shorten(command)}` did not end within {timeout_seconds:.0f} s"
        ) from error
    if done.returncode != 0:
        raise failure(command, done.returncode, (done.stderr or done.stdout).splitlines())
    return done.stdout


def succeeds(argv: Sequence[str | Path], timeout_seconds: float = 30) -> bool:
    """Return whether a program ends with 0; its output is dropped."""
    try:
        run(argv, timeout_seconds=timeout_seconds)
    except DevclusterError:
        return False
    return True


def follow(
    argv: Sequence[str | Path],
    on_line: Callable[[str], None],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> None:
    """Runs a long program, giving each line of its output to `on_line` as it comes."""
    command = [str(part) for part in argv]
    tail: deque[str] = deque(maxlen=TAIL_LINES)
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            env={**os.environ, **env} if env is not None else None,
            cwd=cwd,
        )
    except FileNotFoundError as error:
        raise DevclusterError(f"{command[0]} is not installed or not on PATH") from error
    assert process.stdout is not None
    try:
        for line in process.stdout:
            tail.append(line.rstrip())
            on_line(line.rstrip())
        code = process.wait()
    except BaseException:
        process.terminate()
        process.wait()
        raise
    if code != 0:
        raise failure(command, code, list(tail))


def failure(command: Sequence[str], code: int, lines: Sequence[str]) -> DevclusterError:
    quoted = "\n  ".join(line for line in list(lines)[-TAIL_LINES:] if line.strip())
    return DevclusterError(f"`{shorten(command)}` failed with {code}:\n  {quoted or '(no output)'}")


def shorten(command: Sequence[str], limit: int = 120) -> str:
    text = " ".join(command)
    return text if len(text) <= limit else text[: limit - 1] + "…"
