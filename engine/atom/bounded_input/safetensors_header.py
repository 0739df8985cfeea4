"""Headers of safetensors files, without torch: which tensors a file has, and where.

https://huggingface.co/docs/safetensors/index#format: the length of a JSON object in eight bytes,
the object, then the tensors' bytes. For questions about a checkpoint before a process loads it;
weights are read by the loader.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atom.bounded_input.bounded_json import LISTING, BoundedJsonError, parse_json

_LENGTH_BYTES = 8
_PIECE_BYTES = 1 << 22


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of a file. begin, end: of its bytes in the file."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def read_header(file: Path) -> dict[str, StoredTensor]:
    """Read the tensors of a file by name. Raises OSError, and `BoundedJsonError` for a header that
    is none."""
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(_LENGTH_BYTES), "little")
        if length > LISTING.most_bytes:
            raise BoundedJsonError(f"a header of {length} bytes")
        header = parse_json(opened.read(length), LISTING)
    base = _LENGTH_BYTES + length
    try:
        return {
            name: _tensor(file, base, said)
            for name, said in header.items()
            if name != "__metadata__"
        }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BoundedJsonError(f"a header without {error}") from None


def _tensor(file: Path, base: int, said: dict[str, Any]) -> StoredTensor:
    begin, end = said["data_offsets"]
    shape = tuple(int(size) for size in said["shape"])
    return StoredTensor(file, str(said["dtype"]), shape, base + int(begin), base + int(end))


def hold_the_same(one: StoredTensor, other: StoredTensor) -> bool:
    """Return whether two tensors have the same type, shape and bytes. Raises OSError."""
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    with one.file.open("rb") as first, other.file.open("rb") as second:
        first.seek(one.begin)
        second.seek(other.begin)
        left = one.end - one.begin
        while left > 0:
            size = min(left, _PIECE_BYTES)
            if first.read(size) != second.read(size):
                return False
            left -= size
    return True
