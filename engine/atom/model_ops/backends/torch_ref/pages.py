"""Pages in plain PyTorch: a copy for each segment, and a checksum by words of the page.

The checksum of a page is the sum, modulo 2^64, of a mixed form of each word and its place (the
finaliser of MurmurHash3), so any single wrong word changes it.
"""

from __future__ import annotations

import torch

from atom.model_ops.page_table import MIX, PLACE, WORDS, PageTable, word_bytes


def read_pages(
    table: PageTable, blocks: torch.Tensor, pages: torch.Tensor, sums: torch.Tensor | None = None
) -> None:
    rows = blocks * table.factor
    for segment in table.segments:
        part = pages[:, segment.offset : segment.offset + segment.size]
        part.copy_(segment.memory.index_select(0, rows))
    if sums is not None:
        sums += page_sums(table, pages)


def write_pages(
    table: PageTable, blocks: torch.Tensor, pages: torch.Tensor, sums: torch.Tensor | None = None
) -> None:
    rows = blocks * table.factor
    for segment in table.segments:
        part = pages[:, segment.offset : segment.offset + segment.size]
        segment.memory.index_copy_(0, rows, part.contiguous())
    if sums is not None:
        sums += page_sums(table, pages)


def page_sums(table: PageTable, pages: torch.Tensor) -> torch.Tensor:
    """Return the checksums of pages, int64 [n]."""
    width = word_bytes(table, pages)
    words = pages[:, : table.page_bytes].contiguous().view(WORDS[width]).long()
    mixed = words + torch.arange(1, words.shape[1] + 1, device=words.device) * PLACE
    for factor in MIX:
        mixed = (mixed ^ ((mixed >> 33) & 0x7FFFFFFF)) * factor
    return (mixed ^ ((mixed >> 33) & 0x7FFFFFFF)).sum(1)
