"""What the memory of one device goes to, as parts of a whole: for `plan`'s bar in the terminal and
for the operator's page. Pure; the numbers are the plan's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from atom_operator.domain import Capacity
from atom_operator.sizes import size_text

_CELLS = 48
_SHADES = "█▓▒░"


@dataclass(frozen=True, slots=True)
class MemoryPart:
    name: str
    size_bytes: int


def memory_parts(capacity: Capacity | None) -> tuple[MemoryPart, ...]:
    """Return the parts that add up to the memory of one device, in the order of their allocation.

    Tokens and blocks of a capacity count all copies of the model in a replica; every part here is
    of one device. Empty if the device's memory is not known."""
    if capacity is None or not capacity.device.total_bytes:
        return ()
    kept = "KV cache and states" if capacity.beside_kv.state_bytes else "KV cache"
    parts = [
        MemoryPart("weights", capacity.weights_bytes),
        MemoryPart("activations and runtime", capacity.device.reserve_bytes),
        MemoryPart(kept, capacity.device.kv_cache_bytes + capacity.beside_kv.state_bytes),
    ]
    left = capacity.device.total_bytes - sum(part.size_bytes for part in parts)
    return (*parts, MemoryPart("left free", left))


def bar_lines(parts: Sequence[MemoryPart]) -> tuple[str, str]:
    """Return a bar of characters, and its legend."""
    cells = _cells([part.size_bytes for part in parts])
    bar = "".join(shade * count for shade, count in zip(_SHADES, cells, strict=True))
    legend = ", ".join(
        f"{shade} {part.name} {size_text(part.size_bytes)}"
        for shade, part in zip(_SHADES, parts, strict=True)
    )
    return bar, legend


def _cells(sizes: Sequence[int]) -> list[int]:
    """Return the cells of each part: by its share, at least one unless it is empty, and the bar's
    number in total."""
    whole = sum(sizes)
    cells = [max(1, round(_CELLS * size / whole)) if size else 0 for size in sizes]
    cells[cells.index(max(cells))] += _CELLS - sum(cells)
    return cells
