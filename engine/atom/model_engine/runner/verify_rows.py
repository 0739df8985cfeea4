"""VerifyRows: a step's rows with a row for every token of a decode, drafts included.

Verifying d proposed tokens is decoding 1 + d of one slot at once: keys and values of all are
written before any query reads, and each sees its predecessors. So verification needs no kernel of
its own. Pure; the runner builds it from a batch and the numbers of drafts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from atom.model_engine.batch import ScheduledBatch, Slots


@dataclass(frozen=True, slots=True)
class VerifyRows:
    """The rows of a step that verifies drafts: tokens ahead of the newest. batch: with a decode for
    every token. Of the S rows of the batch that sample: slots; ahead int32, how many tokens ahead
    each carries; first int64, the index of its first draw. Of the n draws: row int64, the index of
    its row; offset int64, how many tokens ahead it is. run_starts [D + 1] int32: the first token of
    each of the batch's D decodes, and the end of the last."""

    batch: ScheduledBatch
    slots: Slots
    ahead: NDArray[np.int32]
    first: NDArray[np.int64]
    row: NDArray[np.int64]
    offset: NDArray[np.int64]
    run_starts: NDArray[np.int32]

    @property
    def most_ahead(self) -> int:
        return int(self.ahead.max(initial=0))

    def draws(self) -> NDArray[np.int64]:
        """Return the indices [S, 1 + K] of each row's draws, in order; arbitrary ones after its
        last."""
        behind = np.arange(1 + self.most_ahead)
        draws: NDArray[np.int64] = np.minimum(self.first[:, None] + behind, len(self.row) - 1)
        return draws


def verify_rows(batch: ScheduledBatch, num_ahead: NDArray[np.int32]) -> VerifyRows:
    """Lay out the rows that verify them; `num_ahead` of the batch's decodes, no more than were
    scheduled."""
    decodes = batch.num_decodes
    ahead = np.zeros(len(batch.slots), dtype=np.int32)
    ahead[:decodes] = num_ahead
    rows = np.repeat(np.arange(len(ahead)), 1 + ahead)
    before = np.cumsum(1 + ahead) - (1 + ahead)
    offset = np.arange(len(rows)) - before[rows]
    scheduled = batch.num_scheduled_tokens[rows]
    tokens = decodes + int(num_ahead.sum())
    scheduled[:tokens] = 1
    samples = batch.samples
    sampling = ahead[samples]
    ends = np.cumsum(1 + sampling)
    return VerifyRows(
        batch=replace(
            batch,
            slots=batch.slots[rows],
            req_ids=batch.req_ids[rows],
            num_computed_tokens=batch.num_computed_tokens[rows] + offset.astype(np.int32),
            num_scheduled_tokens=scheduled,
            samples=samples[rows],
            num_decodes=tokens,
            prompt_scores=tuple(
                replace(score, row=int(before[score.row])) for score in batch.prompt_scores
            ),
        ),
        slots=batch.slots[samples],
        ahead=sampling,
        first=ends - (1 + sampling),
        row=np.repeat(np.arange(len(sampling)), 1 + sampling),
        offset=offset[samples[rows]],
        run_starts=np.append(before[:decodes], tokens).astype(np.int32),
    )
