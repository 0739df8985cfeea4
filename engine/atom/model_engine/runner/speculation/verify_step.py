"""VerifyStep: a submitted step whose decodes carry drafts."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from atom.model_engine.runner.cuda_graphs.verify_graphs import VerifyForward
from atom.model_engine.runner.submitted_step import SubmittedStep
from atom.model_engine.runner.verify_rows import VerifyRows
from atom.model_ops.drafts import DraftLayout, Drafts


@dataclass(slots=True, kw_only=True)
class VerifyStep(SubmittedStep):
    """A step with a draw for each token of its decodes. rows: of the batch; placed: whether the
    host knows their positions. On the device, of the rows that sample: drafts, and layout of the
    draws; `behind` is set with the draws' positions, counts [S] once the accepted drafts are known.
    replayed: the graphs' results for sampling, if graphs ran it."""

    rows: VerifyRows
    drafts: Drafts
    layout: DraftLayout
    placed: bool = True
    counts: torch.Tensor | None = None
    replayed: VerifyForward | None = None
