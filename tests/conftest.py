"""What tests of every part may need."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def socket_folder() -> Iterator[Path]:
    """A folder for Unix sockets, whose paths are bounded however long TMPDIR is."""
    with tempfile.TemporaryDirectory(prefix="atom-test-", dir="/tmp") as folder:
        yield Path(folder)
