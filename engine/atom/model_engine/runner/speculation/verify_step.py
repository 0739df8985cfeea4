"""VerifyStep: a submitted step whose decodes carry drafts."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from atom.model_engine.runner.cuda_graphs.verify_graphs import VerifyForward
from atom.model_engine.runner.step_runner import SubmittedStep
from atom.model_engine.runner.verify_rows import VerifyRows
from atom.model_ops.drafts import DraftLayout, Drafts


@dataclass(slots=True, kw_only=True)
class VerifyStep(SubmittedStep):
    """A step with a draw for each token of its decodes. rows: of the batch; placed: the host knows
    where they stand. On the device, of the rows that sample: drafts, and layout of the draws;
    `behind` is set when the draws' positions are, counts [S] when it is known how many hold.
    replayed: what graphs left to sampling, where they ran it."""

    rows: VerifyRows
    drafts: Drafts
    layout: DraftLayout
    placed: bool = True
    counts: torch.Tensor | None = None
    replayed: VerifyForward | None = None
