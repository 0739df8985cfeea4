"""One invocation at a time: a file lock that the kernel releases however its holder ends."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from devcluster.errors import DevclusterError
from devcluster.progress import Step


@contextmanager
def exclusive(path: Path, what: str) -> Iterator[None]:
    """Holds the lock at `path`; waits, saying so, while another process has it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise DevclusterError(
            f"cannot open the lock {path}: {error.strerror}; make its folder writable"
        ) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with Step(f"wait for the other devcluster command that holds the {what}"):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
