"""RankPages: the pages of a KV cache whose heads are divided over several ranks.

Every rank copies its own heads from or to memory that all share, by a control call between steps,
and the leader takes whole pages from there. Belongs to the engine core's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from atom.model_engine.control import CopyPages, RankControl
from atom.model_engine.runner.pages.transferred_pages import TransferredPages


class RankPages:
    """Implements PageAccess over the ranks of one model. pages: of the rank in this process;
    control: carries a call out on every rank."""

    def __init__(
        self, pages: TransferredPages, control: Callable[[RankControl[Any]], None]
    ) -> None:
        assert pages.shared is not None, "ranks of several share memory"
        self._pages, self._control = pages, control
        self._shared = pages.shared
        self._number = 0

    @property
    def copies_beside_steps(self) -> bool:
        """Return False: ranks copy by control calls, which the core's thread makes."""
        return False

    @property
    def device_memory(self) -> None:
        """Return None: a page has the heads of all ranks, and so of several devices."""
        return

    def tensors(self) -> list[str]:
        """Describe the pages of each group."""
        return self._pages.tensors()

    def page_bytes(self, group: int) -> int:
        """Return the size of a page of this group, of all heads."""
        return self._pages.page_bytes(group)

    def read(self, group: int, block_ids: Sequence[int]) -> list[bytes | memoryview]:
        """Return the pages of blocks, in this order; waits for the slowest rank's step."""
        pages: list[bytes | memoryview] = []
        self._shared.wait(self._number)  # a rank may still take the pages of an earlier write
        for part in self._parts(group, block_ids):
            self._call(group, part, is_read=True)
            self._shared.wait(self._number)
            pages += [row.data for row in self._rows(group, len(part)).numpy().copy()]
        return pages

    def submitted_steps(self) -> None:
        """Return no mark: control calls are carried out behind the steps that were submitted."""
        return

    def write(
        self,
        group: int,
        block_ids: Sequence[int],
        pages: Sequence[bytes | memoryview],
        after: object | None = None,
    ) -> None:
        """Fill blocks with pages before the next step; waits for earlier calls alone."""
        first = 0
        for part in self._parts(group, block_ids):
            self._shared.wait(self._number)
            rows = self._rows(group, len(part))
            for row, page in zip(rows.numpy(), pages[first : first + len(part)], strict=True):
                row.data[:] = page
            first += len(part)
            self._call(group, part, is_read=False)

    def _parts(self, group: int, block_ids: Sequence[int]) -> list[list[int]]:
        most = self._shared.most_rows(self.page_bytes(group))
        return [list(block_ids[first : first + most]) for first in range(0, len(block_ids), most)]

    def _rows(self, group: int, count: int) -> torch.Tensor:
        return self._shared.rows(count, self.page_bytes(group))

    def _call(self, group: int, block_ids: list[int], *, is_read: bool) -> None:
        self._number += 1
        self._control(CopyPages(self._number, group, block_ids, is_read))
