"""OwnBlocks: block numbers of groups whose layers share the pool's blocks.

Scheduler and block manager know the pool's blocks. If a group has n layers side by side in each
block (CacheGroup.layers_per_tensor), a block is n of a layer's own blocks, and layers find theirs
at its number times n. So kernels need not know of the sharing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from atom.model_engine.batch import NewRow, ScheduledBatch
from atom.sizing.cache_groups import CacheGroup


@dataclass(frozen=True, slots=True)
class OwnBlocks:
    """Factors of block numbers, by group; columns: of a group's block table."""

    factors: tuple[int, ...]
    columns: int

    @classmethod
    def of(cls, groups: Sequence[CacheGroup], columns: int) -> OwnBlocks:
        return cls(tuple(group.layers_per_tensor for group in groups), columns)

    def renumbered(self, batch: ScheduledBatch) -> ScheduledBatch:
        """Return the batch with blocks numbered as layers find them."""
        if set(self.factors) == {1}:
            return batch
        appends = batch.block_appends.copy()
        appends[:, 2] *= np.array(self.factors, dtype=np.int32)[appends[:, 1] // self.columns]
        rows = tuple(map(self._row, batch.new_rows))
        return replace(batch, block_appends=appends, new_rows=rows)

    def _row(self, row: NewRow) -> NewRow:
        numbered = zip(row.block_ids, self.factors, strict=True)
        return replace(
            row, block_ids=tuple([block * factor for block in ids] for ids, factor in numbered)
        )
