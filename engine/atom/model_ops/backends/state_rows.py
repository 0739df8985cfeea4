"""States of a step's rows, as every PyTorch backend looks them up in their slots."""

from __future__ import annotations

import torch

from atom.utils.forward_context import AttentionMetaData


def states_before(states: torch.Tensor, step: AttentionMetaData, rows: slice) -> torch.Tensor:
    """Gather what rows have in their slots of states [slots, ..], and zeros of those that begin."""
    assert step.slots is not None, "layers keep states"
    counts = step.query_starts[1:] - step.query_starts[:-1]
    begins = (step.context_lens <= counts)[rows]
    found = states[step.slots[rows]]
    return found.masked_fill(begins.view(-1, *[1] * (found.dim() - 1)), 0.0)
