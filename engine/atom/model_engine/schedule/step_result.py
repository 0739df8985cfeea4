"""StepResult: the tokens that one step gave to each request, and the requests that ended with it.

Packed arrays, as on the wire; made by Scheduler.update, sent to the clients by EngineCore.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from atom.model_engine.request import FinishReason
from atom.model_engine.sequence import Sequence
from atom.model_engine.transfer_legs import TicketNote
from atom.model_engine.wire.engine_protocol import (
    FinishedRow,
    RankStats,
    StreamBody,
    accepted_tokens,
)
from atom.model_engine.wire.logprob_rows import LogprobRows, LogprobsBody
from atom.model_engine.wire.pooled_rows import PooledBody, PooledRows


@dataclass(frozen=True, slots=True)
class StepResult:
    """Row i: request `request_ids[i]` (int64) got the next `counts[i]` of `token_ids` (int32), one
    where counts is None; and who ended. logprobs, prompt_logprobs: for requests that asked; also of
    some that have ended meanwhile, as `pooled` may be."""

    request_ids: NDArray[np.int64]
    token_ids: NDArray[np.int32]
    finished: list[FinishedRow]
    counts: NDArray[np.int32] | None = None
    logprobs: LogprobRows | None = None
    prompt_logprobs: LogprobRows | None = None
    pooled: PooledRows | None = None

    def runs(self) -> Iterator[tuple[int, list[int]]]:
        """Yield each request that got tokens, and these."""
        return accepted_tokens(self.request_ids, self.token_ids, self.counts)

    def message(self, rank_stats: RankStats | None) -> StreamBody:
        """Pack the result for a client, with the rank's statistics."""
        return StreamBody(
            request_ids=self.request_ids.tobytes(),
            token_ids=self.token_ids.tobytes(),
            counts=b"" if self.counts is None else self.counts.tobytes(),
            finished=self.finished,
            logprobs=LogprobsBody.packed(self.logprobs),
            prompt_logprobs=LogprobsBody.packed(self.prompt_logprobs),
            pooled=PooledBody.packed(self.pooled),
            rank_stats=rank_stats,
        )

    def where(self, chosen: Callable[[NDArray[np.int64]], NDArray[np.bool_]]) -> StepResult:
        """Return the part of the result for the requests whose ids `chosen` accepts."""
        rows = chosen(self.request_ids)
        ends = chosen(np.array([row.request_id for row in self.finished], dtype=np.int64))
        counts = self.counts
        return StepResult(
            self.request_ids[rows],
            self.token_ids[rows if counts is None else np.repeat(rows, counts)],
            [row for row, mine in zip(self.finished, ends.tolist(), strict=True) if mine],
            None if counts is None else counts[rows],
            self.logprobs and self.logprobs.where(chosen(self.logprobs.request_ids)),
            self.prompt_logprobs
            and self.prompt_logprobs.where(chosen(self.prompt_logprobs.request_ids)),
            self.pooled and self.pooled.where(chosen(self.pooled.request_ids)),
        )


def finished_row(
    sequence: Sequence, reason: FinishReason, detail: str, ticket: TicketNote | None = None
) -> FinishedRow:
    """Report the end of a sequence. detail: which condition ended it; ticket: of its pages."""
    scheduled = sequence.scheduled_time
    return FinishedRow(
        request_id=sequence.id,
        reason=reason.value,
        detail=detail,
        num_cached_tokens=sequence.num_cached_tokens,
        queue_seconds=None if scheduled is None else scheduled - sequence.arrive_time,
        ticket=ticket,
    )
