"""What MORI keeps on each device, where the spec's own arguments choose it for experts' tokens.

MORI takes its heap at start, as large as `MORI_SHMEM_HEAP_SIZE` says (its guide
docs/MORI-SHMEM-GUIDE.md and ParseSizeString in src/shmem/init.cpp). The engine measures it; a plan
that left it out would promise a cache that does not fit.
"""

from __future__ import annotations

import re

from atom_operator.domain.options import EngineOptions

_GIB = 1024**3
_DEFAULT_BYTES = 4 * _GIB  # of its static heap
_VARIABLE = "MORI_SHMEM_HEAP_SIZE"
_UNITS = {"": 1, "k": 1024, "m": 1024**2, "g": _GIB}
_SIZE = re.compile(r"(\d+)([kmg]?)(?:i?b)?", re.IGNORECASE)


def expert_heap_bytes(options: EngineOptions) -> int:
    """Return the bytes of a device; 0 where experts' tokens go another way, or stay on their
    rank."""
    if not options.shares_experts or options.parallel.expert_exchange != "mori":
        return 0
    said = [entry.get("value") for entry in options.serving.env if entry.get("name") == _VARIABLE]
    match = _SIZE.fullmatch(str(said[-1]).strip()) if said else None
    if match is None:  # nothing that can be read here: another object's value, or MORI's own error
        return _DEFAULT_BYTES
    return int(match[1]) * _UNITS[match[2].lower()]
