"""The memory of the host that this container's processes may use.

The limits of the control group count, not the machine's size. Loads no torch: servers without a
device ask, too.
"""

from __future__ import annotations

from pathlib import Path

import psutil

_CGROUP_FILES = (
    Path("/sys/fs/cgroup/memory.max"),  # version 2
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),  # version 1
)


def host_memory_bytes() -> int:
    """Return the least of the machine's memory and the container's limits, in bytes."""
    return min([psutil.virtual_memory().total, *_cgroup_limits()])


def _cgroup_limits() -> list[int]:
    limits = []
    for file in _CGROUP_FILES:
        try:
            limits.append(int(file.read_text()))
        except (OSError, ValueError):  # absent, or the word "max"
            continue
    return limits
