"""FileRows: rows of the host's memory as pages for files, whatever the number of ranks.

A row has each rank's own part; a file has the canonical page of all heads. A row of one rank is
the page already, and goes to a file and back without a copy. The bytes are proven on the way: a
page is taken from a row only if each part still has the checksum that its rank noted, and a page
that was read gets the checksums that the ranks compare when they copy it to the device. Used by the
threads of FileStore; owned by RankTier.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from atom.model_engine.runner.pages.canonical_pages import CanonicalPage
from atom.model_engine.runner.pages.host_memory import HostMemory
from atom.model_engine.runner.pages.page_sums import PageSums


class FileRows:
    """Implements HostRows. memory: of all ranks."""

    def __init__(self, memory: HostMemory) -> None:
        self._memory = memory
        self._pages: Sequence[Sequence[CanonicalPage]] = ()  # of each rank, of each kind
        self._sums: PageSums
        self._own = threading.local()

    def bind(self, pages: Sequence[Sequence[CanonicalPage]], sums: PageSums) -> None:
        """Divide rows by these layouts of pages, and prove them by these checksums, from now on.
        pages: by rank and by kind."""
        self._pages, self._sums = pages, sums

    def page_bytes(self, kind: int) -> int:
        """Return the size of a page of this kind, of all ranks."""
        return self._pages[0][kind].page_bytes

    def page(self, kind: int, row: int) -> memoryview | None:
        """Return the page in a row, until this thread asks for the next one; None if the row has
        been damaged since the ranks filled it."""
        parts, noted = self._parts(kind, row), self._memory.sums_of_ranks(row)
        for part, sum_ in zip(parts, noted.tolist(), strict=True):
            if self._sums.of(kind, part.numpy()) != sum_:
                return None
        if len(parts) == 1:
            return parts[0].numpy().data
        found = self._scratch(kind)
        for layouts, part in zip(self._pages, parts, strict=True):
            layouts[kind].gather(part[None], torch.from_numpy(found)[None])
        return found.data

    def buffer(self, kind: int, row: int) -> memoryview:
        """Return memory for the page that a row is to get. The row is void until `fill`."""
        self._memory.sums_of_ranks(row)[:] = 0
        parts = self._parts(kind, row)
        return parts[0].numpy().data if len(parts) == 1 else self._scratch(kind).data

    def fill(self, kind: int, row: int) -> None:
        """Let a row have the page that this thread has read into its `buffer`."""
        parts, noted = self._parts(kind, row), self._memory.sums_of_ranks(row)
        if len(parts) > 1:
            page = torch.from_numpy(self._scratch(kind))[None]
            for layouts, part in zip(self._pages, parts, strict=True):
                layouts[kind].scatter(page, part[None])
        noted[:] = [self._sums.of(kind, part.numpy()) for part in parts]

    def _parts(self, kind: int, row: int) -> torch.Tensor:
        """Return the ranks' parts of a row, uint8 [ranks, bytes]."""
        return self._memory.parts_of_ranks(row)[:, : self._pages[0][kind].own_bytes]

    def _scratch(self, kind: int) -> NDArray[np.uint8]:
        """Return this thread's memory for a page of a kind."""
        size = self.page_bytes(kind)
        held: NDArray[np.uint8] | None = getattr(self._own, "page", None)
        if held is None or len(held) < size:
            held = self._own.page = np.empty(size, dtype=np.uint8)
        return held[:size]
