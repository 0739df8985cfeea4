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

from atom.model_ops.page_table import MIX, PLACE, WORDS, PageTable, word_bytes

_CHUNK_BYTES = 8192
_PLACE = tl.constexpr(PLACE)
_MIX_1, _MIX_2 = (tl.constexpr(factor) for factor in MIX)


@triton.jit
def copy_pages_kernel(
    pages_ptr,  # words [n, page_words]
    blocks_ptr,  # int64 [n]
    chunks_ptr,  # int64 [chunks, 4]: address and bytes of a row, first word in the page, words
    page_words,
    factor,
    sums_ptr,  # int64 [n], zeros, or None
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
        content = tl.load(memory + at, mask=inside)
        tl.store(words + at, content, mask=inside)
    else:
        content = tl.load(words + at, mask=inside)
        tl.store(memory + at, content, mask=inside)
    if sums_ptr is not None:
        # Each word is mixed with its place, as the reference does, and sums of chunks are added.
        first = tl.load(chunk + 2)
        mixed = content.to(tl.int64) + (first + at + 1) * _PLACE
        mixed = (mixed ^ ((mixed >> 33) & 0x7FFFFFFF)) * _MIX_1
        mixed = (mixed ^ ((mixed >> 33) & 0x7FFFFFFF)) * _MIX_2
        mixed = mixed ^ ((mixed >> 33) & 0x7FFFFFFF)
        tl.atomic_add(sums_ptr + page, tl.sum(tl.where(inside, mixed, 0), 0))


def read_pages(
    table: PageTable, blocks: torch.Tensor, pages: torch.Tensor, sums: torch.Tensor | None = None
) -> None:
    _copy(table, blocks, pages, sums, read=True)


def write_pages(
    table: PageTable, blocks: torch.Tensor, pages: torch.Tensor, sums: torch.Tensor | None = None
) -> None:
    _copy(table, blocks, pages, sums, read=False)


def _copy(
    table: PageTable,
    blocks: torch.Tensor,
    pages: torch.Tensor,
    sums: torch.Tensor | None,
    *,
    read: bool,
) -> None:
    width = word_bytes(table, pages)
    chunks = table.prepared.get(width)
    if chunks is None:
        chunks = table.prepared[width] = _chunks(table, width)
    words = pages.view(WORDS[width])
    copy_pages_kernel[len(blocks), len(chunks)](
        words, blocks, chunks, words.stride(0), table.factor, sums, READ=read,
        CHUNK=_CHUNK_BYTES // width,
    )  # fmt: skip


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
