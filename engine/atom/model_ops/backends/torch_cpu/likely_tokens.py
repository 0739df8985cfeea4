"""Top-p without sorting the vocabulary: the few likeliest tokens mostly hold the mass that counts.

Looks at more of them for the rows where they do not. The host may look at the values here, since
there is no device to wait for.
"""

from __future__ import annotations

import torch

from atom.model_ops.backends import likely_tokens
from atom.model_ops.backends.interface import LikelyLimits

_FIRST_CANDIDATES = 128
_MORE = 8  # times as many when they were not enough


def keep_likely(logits: torch.Tensor, limits: LikelyLimits) -> torch.Tensor:
    """See `Ops.keep_likely`."""
    vocab = logits.shape[1]
    in_order = limits.candidates < vocab or not bool((limits.top_k >= vocab).all())
    if in_order or logits.dtype != torch.float32:
        return likely_tokens.keep_likely(logits, limits)
    least = _least_of_top_p(logits, likely_tokens.rate_free(limits.temperature), limits.top_p)
    least = least.masked_fill(limits.top_p >= 1, -torch.inf)
    logits.masked_fill_(logits < least.unsqueeze(1), -torch.inf)
    return likely_tokens.keep_min_p(logits, limits) if limits.any_min_p else logits


def _least_of_top_p(
    logits: torch.Tensor, temperature: torch.Tensor, top_p: torch.Tensor
) -> torch.Tensor:
    """[R] the lowest logit of the smallest set of tokens whose probability reaches top-p."""
    vocab = logits.shape[1]
    highest = logits.amax(dim=-1, keepdim=True)
    total = ((logits - highest) / temperature.unsqueeze(1)).exp_().sum(dim=-1)
    least = torch.empty_like(total)
    pending = torch.arange(len(logits))
    candidates = min(_FIRST_CANDIDATES, vocab)
    while len(pending):
        ordered = logits[pending].topk(candidates, dim=-1).values
        scale = temperature[pending].unsqueeze(1)
        weights = ((ordered - highest[pending]) / scale).exp_()
        enough = top_p[pending] * total[pending]
        least[pending] = likely_tokens.least_of_top_p(ordered, weights, enough)
        if candidates == vocab:
            break
        pending = pending[weights.sum(dim=-1) < enough]
        candidates = min(candidates * _MORE, vocab)
    return least
