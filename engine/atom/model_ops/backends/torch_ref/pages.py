"""Pages in plain PyTorch: a copy for each segment."""

from __future__ import annotations

import torch

from atom.model_ops.page_table import PageTable


def read_pages(table: PageTable, blocks: torch.Tensor, pages: torch.Tensor) -> None:
    rows = blocks * table.factor
    for segment in table.segments:
        part = pages[:, segment.offset : segment.offset + segment.size]
        part.copy_(segment.memory.index_select(0, rows))


def write_pages(table: PageTable, blocks: torch.Tensor, pages: torch.Tensor) -> None:
    rows = blocks * table.factor
    for segment in table.segments:
        part = pages[:, segment.offset : segment.offset + segment.size]
        segment.memory.index_copy_(0, rows, part.contiguous())
