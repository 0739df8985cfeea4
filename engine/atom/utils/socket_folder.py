"""A folder for socket files: ours alone, and with a path that is short enough for them.

A socket's path may have 107 bytes, and folders for temporary files are often long (TMPDIR of a
batch system, of macOS). Used wherever processes of ours talk through files.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from atom.errors import ConfigError

_MOST_BYTES = 107  # of sockaddr_un on Linux, less its end
_WITHIN_BYTES = 48  # "/atom-grammar-12345678/client-64-requests" and some
_USUAL = "/tmp"


def make_socket_folder(prefix: str) -> Path:
    """Make a new folder of mode 0700, below TMPDIR if that is short enough and /tmp otherwise.
    Raises `ConfigError` if neither is possible."""
    for parent in _parents():
        if len(os.fsencode(parent)) + _WITHIN_BYTES > _MOST_BYTES:
            continue
        try:
            return Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        except OSError:
            continue
    raise ConfigError(
        f"no folder for sockets: neither TMPDIR nor {_USUAL} can be written in and has a path of "
        f"at most {_MOST_BYTES - _WITHIN_BYTES} bytes; set TMPDIR to one that has"
    )


def _parents() -> list[str]:
    try:
        return [tempfile.gettempdir(), _USUAL]
    except FileNotFoundError:  # none that can be written in
        return []
