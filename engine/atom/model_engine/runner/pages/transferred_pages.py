"""TransferredPages: pages of the KV cache as bytes, for engines that exchange them.

Copies run on the stream of the steps, so a page is read after the step that computed it and written
before the step that attends to it. Used by KVTransfer, a few pages at a time.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from atom.model_ops.backends.page_ops import page_ops
from atom.model_ops.page_table import PageTable


class TransferredPages:
    """Implements PageAccess over one device. tables: of each group of layers."""

    def __init__(self, tables: Sequence[PageTable], device: torch.device) -> None:
        self._tables = tables
        self._device = device
        self._ops = page_ops(device)

    def page_bytes(self, group: int) -> int:
        """Return the size of a page of this group."""
        return self._tables[group].page_bytes

    @torch.inference_mode()
    def read(self, group: int, block_ids: Sequence[int]) -> list[bytes | memoryview]:
        """Return the pages of blocks, in this order."""
        table = self._tables[group]
        pages = torch.empty(
            (len(block_ids), table.page_bytes), dtype=torch.uint8, device=self._device
        )
        self._ops.read_pages(table, self._blocks(block_ids), pages)
        return [page.data for page in pages.cpu().numpy()]

    @torch.inference_mode()
    def write(
        self, group: int, block_ids: Sequence[int], pages: Sequence[bytes | memoryview]
    ) -> None:
        """Fill blocks with pages."""
        table = self._tables[group]
        joined = torch.frombuffer(bytearray().join(pages), dtype=torch.uint8)
        rows = joined.view(len(block_ids), table.page_bytes).to(self._device)
        self._ops.write_pages(table, self._blocks(block_ids), rows)

    def tensors(self) -> list[str]:
        """Describe the parts of a page of each group, in their order: sizes in bytes."""
        return [",".join(str(segment.size) for segment in table.segments) for table in self._tables]

    def _blocks(self, block_ids: Sequence[int]) -> torch.Tensor:
        return torch.tensor(block_ids, dtype=torch.int64).to(self._device)
