"""How the C library's allocator treats what a step frees, on the CPU backend.

By default it gives tensors of some megabytes back to the system and asks for them again at every
step, and the kernel hands them out page by page, zeroed: several times the cost of the arithmetic.
"""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_MOST_IN_HEAP_BYTES = 32 << 20  # the largest threshold that glibc takes
_KEPT_BYTES = 512 << 20


def keep_freed_memory() -> bool:
    """Let the allocator keep freed memory, up to half a GiB, for the next step. Whether it could:
    only glibc can be told."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return bool(
        mallopt(_M_MMAP_THRESHOLD, _MOST_IN_HEAP_BYTES) and mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
    )
