"""StepResult: what one step gave to whom, and who ended with it.

Arrays, as they travel; made by Scheduler.update, sent to the clients by EngineCore.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from atom.model_engine.wire.engine_protocol import FinishedRow
from atom.model_engine.wire.logprob_rows import LogprobRows


@dataclass(frozen=True, slots=True)
class StepResult:
    """Row i: request `request_ids[i]` (int64) got `token_ids[i]` (int32); and who ended. logprobs,
    prompt_logprobs: for requests that asked; also of some that have ended meanwhile."""

    request_ids: NDArray[np.int64]
    token_ids: NDArray[np.int32]
    finished: list[FinishedRow]
    logprobs: LogprobRows | None = None
    prompt_logprobs: LogprobRows | None = None

    def where(self, chosen: Callable[[NDArray[np.int64]], NDArray[np.bool_]]) -> StepResult:
        """What concerns the requests that `chosen` is true of, given their ids."""
        rows = chosen(self.request_ids)
        ends = chosen(np.array([row.request_id for row in self.finished], dtype=np.int64))
        return StepResult(
            self.request_ids[rows],
            self.token_ids[rows],
            [row for row, mine in zip(self.finished, ends.tolist(), strict=True) if mine],
            self.logprobs and self.logprobs.where(chosen(self.logprobs.request_ids)),
            self.prompt_logprobs
            and self.prompt_logprobs.where(chosen(self.prompt_logprobs.request_ids)),
        )
