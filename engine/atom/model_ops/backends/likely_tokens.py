"""Top-k, top-p and min-p: which tokens of a row may be drawn at all. Shared by the backends.

Each limit is a least logit, so that what is kept does not depend on the order of equal tokens.
Nothing here makes the host wait for the device.
"""

from __future__ import annotations

import torch

from atom.model_ops.backends.interface import LikelyLimits


def keep_likely(logits: torch.Tensor, limits: LikelyLimits) -> torch.Tensor:
    """See `Ops.keep_likely`."""
    if limits.largest_top_k or limits.any_top_p:
        least = _least_kept(logits, limits)
        logits.masked_fill_(logits < least.unsqueeze(1), -torch.inf)
    if limits.any_min_p:
        temperature = _rate_of_greedy_is_one(limits.temperature)
        highest = logits.amax(dim=-1)
        least = highest + temperature * limits.min_p.log()
        logits.masked_fill_(logits < least.unsqueeze(1), -torch.inf)
    return logits


def _least_kept(logits: torch.Tensor, limits: LikelyLimits) -> torch.Tensor:
    """[R] the lowest logit within top-k and then top-p."""
    ordered = logits.sort(dim=-1, descending=True).values
    last = (limits.top_k - 1).clamp(max=logits.shape[1] - 1).unsqueeze(1)
    least = ordered.gather(1, last)
    if not limits.any_top_p:
        return least.squeeze(1)
    temperature = _rate_of_greedy_is_one(limits.temperature)
    ordered = ordered.masked_fill(ordered < least, -torch.inf)
    probabilities = (ordered / temperature.unsqueeze(1)).softmax(dim=-1)
    mass_before = probabilities.cumsum(dim=-1) - probabilities
    # The most likely token always stays: no mass is before it. Rounding must not cut a row without
    # top-p.
    kept = (mass_before < limits.top_p.unsqueeze(1)) | (limits.top_p >= 1).unsqueeze(1)
    last = kept.sum(dim=-1, keepdim=True).clamp(min=1) - 1
    return torch.maximum(least, ordered.gather(1, last)).squeeze(1)


def _rate_of_greedy_is_one(temperature: torch.Tensor) -> torch.Tensor:
    return torch.where(temperature == 0, 1.0, temperature)
