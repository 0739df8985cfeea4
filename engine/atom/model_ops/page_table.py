"""PageTable: where the bytes of one block of a group of layers are, and their order in a page.

A page is the content of a block outside the device: the tensors of each layer in the model's order,
as the layer declares them (keys, values, and then their scales; with MLA the latent and the rotated
key, and then the indexer's), without padding. A checkpoint of states is a block of this kind, too.
Backends copy pages by this table (backends/page_ops.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch

WORDS = {8: torch.int64, 4: torch.int32, 1: torch.uint8}  # of a copy, by their bytes
# Of checksums: words are mixed with their place, so equal words at other places differ.
PLACE = -7046029254386353131  # 2^64 over the golden ratio, odd
MIX = (-49064778989728563, -4265267296055464877)  # MurmurHash3's finaliser


@dataclass(frozen=True, slots=True)
class PageSegment:
    """The part of a page that is stored together. memory: uint8 [rows, size], a view of a layer's
    tensor; offset: of the part in the page, in bytes."""

    memory: torch.Tensor
    offset: int

    @property
    def size(self) -> int:
        return self.memory.shape[1]


@dataclass(frozen=True, slots=True, eq=False)
class PageTable:
    """The segments of a page. factor: a block is row `block · factor` of each segment. page_bytes:
    of all segments; word_bytes: of the widest word that each address and size is a multiple of, at
    most 8; both are facts of the segments, which take longer to sum up than a page to copy.
    prepared: a kernel's own form of the segments, which lives as long as the table."""

    segments: tuple[PageSegment, ...]
    factor: int
    page_bytes: int
    word_bytes: int
    prepared: dict[int, torch.Tensor] = field(default_factory=dict)

    @staticmethod
    def of(tensors: Iterable[torch.Tensor], factor: int = 1) -> PageTable:
        """Make the table of tensors [rows, ..], whose rows are contiguous each, in this order."""
        segments, offset, sizes = [], 0, [8]
        for tensor in tensors:
            memory = byte_rows(tensor)
            segments.append(PageSegment(memory, offset))
            offset += memory.shape[1]
            sizes += [memory.shape[1], memory.stride(0), memory.data_ptr()]
        return PageTable(tuple(segments), factor, offset, math.gcd(*sizes))

    def word_of_rows(self, row_bytes: int) -> int:
        """Return the bytes of a word of pages in a buffer, whose rows have this size."""
        return _widest_word(self.word_bytes, row_bytes)


def word_bytes(table: PageTable, pages: torch.Tensor) -> int:
    """Return the bytes of the widest word that every address and size is a multiple of."""
    return _widest_word(table.word_bytes, pages.stride(0), pages.data_ptr())


def _widest_word(*sizes: int) -> int:
    common = math.gcd(*sizes)
    return next(width for width in WORDS if common % width == 0)


def byte_rows(tensor: torch.Tensor) -> torch.Tensor:
    """View a tensor [rows, ..] as bytes [rows, size]."""
    rows, *shape = tensor.shape
    assert _is_contiguous(tensor.stride()[1:], shape), "a row of a cache is stored in one piece"
    width = tensor.element_size()
    size = math.prod(shape) * width
    stride = tensor.stride(0) * width if rows > 1 else size
    found = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return found.set_(
        tensor.untyped_storage(), tensor.storage_offset() * width, (rows, size), (stride, 1)
    )


def _is_contiguous(strides: Sequence[int], shape: Sequence[int]) -> bool:
    expected = 1
    for stride, size in zip(reversed(strides), reversed(shape), strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True
