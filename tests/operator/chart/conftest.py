"""helm, for every test of the chart."""

from __future__ import annotations

import os
import shutil

import pytest

from devcluster.settings import read_settings


@pytest.fixture(scope="module")
def helm() -> str:
    """helm of the PATH, or the one that devcluster built."""
    built = read_settings(os.environ).tools / "helm"
    found = shutil.which("helm") or (str(built) if built.exists() else None)
    if found is None:
        pytest.skip(f"no helm in PATH nor at {built}: python -m devcluster build makes one")
    return found
