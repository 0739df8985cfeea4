"""Top-k and top-p: which tokens of a row may be drawn at all. Shared by the backends' samplers.

A full sort per row; batches whose rows ask for neither never come here.
"""

from __future__ import annotations

import torch

from atom.model_ops.backends.interface import SamplingTensors


def keep_likely(logits: torch.Tensor, sampling: SamplingTensors) -> torch.Tensor:
    """logits [R, V] float32, scaled by temperature. Tokens outside top-k, and then outside the
    smallest set of probability top-p, become -inf."""
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(logits.shape[1], device=logits.device)
    ordered = ordered.masked_fill(rank >= sampling.top_k.unsqueeze(1), -torch.inf)
    probabilities = ordered.softmax(dim=-1)
    mass_before = probabilities.cumsum(dim=-1) - probabilities
    # The most likely token always stays: no mass is before it.
    ordered = ordered.masked_fill(
        (mass_before >= sampling.top_p.unsqueeze(1)) & (rank > 0), -torch.inf
    )
    return torch.empty_like(logits).scatter_(1, order, ordered)
