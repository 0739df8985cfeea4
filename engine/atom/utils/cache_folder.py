"""The folder for files that this user's engine can make again: compiled kernels, measured tiles.

It is $ATOM_CACHE_DIR, else the user's cache folder by the XDG base directories.
"""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder(kind: str) -> Path:
    """Return the folder for one kind of file; it may not exist yet."""
    root = os.environ.get("ATOM_CACHE_DIR")
    if root is None:
        user = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        root = str(Path(user) / "atom")
    return Path(root) / kind
