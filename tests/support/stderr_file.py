"""Standard error of processes that are started meanwhile, in a file that a test can read."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def stderr_into(path: Path) -> Iterator[None]:
    """Of this process too; children keep the file when it ends."""
    kept = os.dup(2)
    with path.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
