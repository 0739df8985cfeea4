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
    """The segments of a page. factor: a block is row `block · factor` of each segment. prepared: a
    kernel's own form of the segments, which lives as long as the table."""

    segments: tuple[PageSegment, ...]
    factor: int = 1
    prepared: dict[int, torch.Tensor] = field(default_factory=dict)

    @property
    def page_bytes(self) -> int:
        return sum(segment.size for segment in self.segments)

    @staticmethod
    def of(tensors: Iterable[torch.Tensor], factor: int = 1) -> PageTable:
        """Make the table of tensors [rows, ..], whose rows are contiguous each, in this order."""
        segments, offset = [], 0
        for tensor in tensors:
            segment = PageSegment(byte_rows(tensor), offset)
            segments.append(segment)
            offset += segment.size
        return PageTable(tuple(segments), factor)


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
