"""DraftedStep: a submitted step whose decodes carry drafts."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from atom.model_engine.runner.drafted_rows import DraftedRows
from atom.model_engine.runner.step_runner import SubmittedStep
from atom.model_ops.drafts import Drafts


@dataclass(slots=True, kw_only=True)
class DraftedStep(SubmittedStep):
    """A step with a draw for each token of its decodes. rows: of the batch; placed: the host knows
    where they stand. On the device: drafts and slots [S] of the rows that sample, order [S, 1 + K]
    int64 which draws are theirs; row, offset [n] int64 of the draws, as in `rows`; `behind` is set
    when the draws' positions are, counts [S] when it is known how many hold."""

    rows: DraftedRows
    placed: bool
    drafts: Drafts
    slots: torch.Tensor
    order: torch.Tensor
    row: torch.Tensor
    offset: torch.Tensor
    counts: torch.Tensor | None = None
