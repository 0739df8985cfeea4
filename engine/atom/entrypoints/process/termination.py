"""The last message of a container, which Kubernetes keeps in the pod's status."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

# Where Kubernetes reads it; elsewhere the file does not exist, and nothing is written.
_DEFAULT_FILE = "/dev/termination-log"
_FILE_VARIABLE = "ATOM_TERMINATION_LOG"
MOST_BYTES = 4096  # the API keeps no more


def leave_message(content: dict[str, Any]) -> None:
    """Leave `content` as JSON for whoever reads the pod's status."""
    path = Path(os.environ.get(_FILE_VARIABLE, _DEFAULT_FILE))
    text = json.dumps(content)
    if path.exists() and len(text.encode()) <= MOST_BYTES:
        with contextlib.suppress(OSError):
            path.write_text(text, encoding="utf-8")
