"""What tests of the embedded cluster's commands share."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def own_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command completes PATH for its own process; what other tests find stays as it was."""
    monkeypatch.setenv("PATH", os.environ.get("PATH", ""))
