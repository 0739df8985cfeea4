"""Publishing: blocks and states of a step's rows, for other prompts to find in the prefix cache.

Used by Scheduler only, once the step's tokens are known.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from atom.model_engine.batch import ScheduledBatch
from atom.model_engine.schedule.row_blocks import RowBlocks
from atom.model_engine.schedule.state_saves import StateSaves


class Publishing:
    def __init__(self, row_blocks: RowBlocks, saves: StateSaves | None) -> None:
        self._row_blocks = row_blocks
        self._saves = saves

    def publish(
        self,
        batch: ScheduledBatch,
        alive: NDArray[np.bool_],
        context_lens: NDArray[np.int32],
        saved: NDArray[np.bool_],
    ) -> None:
        """Publish the batch's blocks to other prompts, and the states that it saved of rows at the
        stated position (`saved`)."""
        saves = self._saves if batch.state_saves else None
        parents = [] if saves is None else saves.parents(batch)
        self._row_blocks.publish(batch, alive, context_lens)
        if saves is not None:
            saves.keep(batch, saved, parents)
