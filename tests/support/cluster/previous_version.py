"""The version that upgrades start from, taken out of this checkout's history."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.cluster.live_cluster import ROOT

# The last commit before leases, webhook, preparation and rollback: another operator in every way.
PREVIOUS = "7777ba9ea906fe4fe3b3180cbc00df7dc6e64abe"

# Stands for the minor version before this one until one is published: what people ran when 0.1.0's
# CHANGELOG was written. Then it is the tag of that version.
PREVIOUS_MINOR = "fc548aa40985f36f1717aad6cfe8fa7ccfc69d1b"


def extract(folder: Path, *paths: str, commit: str = PREVIOUS) -> Path:
    """Its sources (or these paths of them) in `folder`; skips where history is not there."""
    archive = subprocess.run(
        ["git", "archive", commit, *paths], cwd=ROOT, capture_output=True, timeout=60, check=False
    )
    if archive.returncode:
        pytest.skip(f"this checkout has no commit {commit[:8]}: git fetch --unshallow")
    subprocess.run(["tar", "--extract"], input=archive.stdout, cwd=folder, timeout=60, check=True)
    return folder
