"""Memory that processes share by an inherited file descriptor, without a name.

Nothing of it is left when the processes end, however they end, and a pod's limit of /dev/shm does
not apply.
"""

from __future__ import annotations

import os
import sys
import tempfile


def unnamed_memory(name: str, size_bytes: int = 0) -> int:
    """Return the descriptor of new memory. name: for people, who look at the process."""
    if sys.platform == "linux":
        descriptor = os.memfd_create(name)
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size_bytes)
    return descriptor
