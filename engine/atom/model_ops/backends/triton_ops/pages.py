# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Pages by one launch for all layers of a group.

Shapes: n pages of a group's segments (PageTable). A segment is cut into chunks of at most 8 KiB,
and a program copies one chunk of one page. The layout of a page is the table's: segments one after
the other. Tile: one chunk, in words of 8 bytes if every size is a multiple of 8, else of 4 or 1.
Bound by memory: each byte is read once and written once. A copy for each layer would be a launch
for each of up to 200 tensors, which takes longer than the bytes of a few pages.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from atom.model_ops.page_table import PageTable

_CHUNK_BYTES = 8192
_WORDS = {8: torch.int64, 4: torch.int32, 1: torch.uint8}


@triton.jit
def copy_pages_kernel(
    pages_ptr,  # words [n, page_words]
    blocks_ptr,  # int64 [n]
    chunks_ptr,  # int64 [chunks, 4]: address and bytes of a row, first word in the page, words
    page_words,
    factor,
    READ: tl.constexpr,  # from blocks to pages; else from pages to blocks
    CHUNK: tl.constexpr,  # most words of a chunk, a power of two
):
    page = tl.program_id(0).to(tl.int64)
    chunk = chunks_ptr + tl.program_id(1) * 4
    row = tl.load(blocks_ptr + page) * factor
    # Segments are different tensors, so their addresses are data, and no arguments.
    address = tl.load(chunk) + row * tl.load(chunk + 1)
    memory = address.to(tl.pointer_type(pages_ptr.dtype.element_ty))
    words = pages_ptr + page * page_words + tl.load(chunk + 2)
    at = tl.arange(0, CHUNK)
    inside = at < tl.load(chunk + 3)
    if READ:
        tl.store(words + at, tl.load(memory + at, mask=inside), mask=inside)
    else:
        tl.store(memory + at, tl.load(words + at, mask=inside), mask=inside)


def read_pages(table: PageTable, blocks: torch.Tensor, pages: torch.Tensor) -> None:
    _copy(table, blocks, pages, read=True)


def write_pages(table: PageTable, blocks: torch.Tensor, pages: torch.Tensor) -> None:
    _copy(table, blocks, pages, read=False)


def _copy(table: PageTable, blocks: torch.Tensor, pages: torch.Tensor, *, read: bool) -> None:
    width = _width(table, pages)
    chunks = table.prepared.get(width)
    if chunks is None:
        chunks = table.prepared[width] = _chunks(table, width)
    words = pages.view(_WORDS[width])
    copy_pages_kernel[len(blocks), len(chunks)](
        words, blocks, chunks, words.stride(0), table.factor, READ=read,
        CHUNK=_CHUNK_BYTES // width,
    )  # fmt: skip


def _width(table: PageTable, pages: torch.Tensor) -> int:
    """Return the bytes of the widest word that every address and size is a multiple of."""
    sizes = [pages.stride(0), pages.data_ptr()]
    for segment in table.segments:
        memory = segment.memory
        sizes += [segment.size, segment.offset, memory.stride(0), memory.data_ptr()]
    return next(width for width in _WORDS if all(size % width == 0 for size in sizes))


def _chunks(table: PageTable, width: int) -> torch.Tensor:
    """Cut the segments into chunks [chunks, 4], on their device."""
    most = _CHUNK_BYTES // width
    chunks = []
    for segment in table.segments:
        memory = segment.memory
        for first in range(0, segment.size // width, most):
            count = min(most, segment.size // width - first)
            start = memory.data_ptr() + first * width
            chunks.append((start, memory.stride(0), segment.offset // width + first, count))
    return torch.tensor(chunks, dtype=torch.int64).to(table.segments[0].memory.device)
