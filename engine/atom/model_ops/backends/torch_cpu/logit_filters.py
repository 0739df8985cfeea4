"""Top-p without sorting the vocabulary: the few likeliest tokens mostly hold the required mass.

More tokens are considered for the rows in which they do not. The host may read the values here,
since there is no device to wait for.
"""

from __future__ import annotations

import torch

from atom.model_ops.backends import logit_filters
from atom.model_ops.backends.interface import LogitFilters

_FIRST_CANDIDATES = 128
_MORE = 8  # times as many when they were not enough


def filter_logits(logits: torch.Tensor, filters: LogitFilters) -> torch.Tensor:
    """See `Ops.filter_logits`."""
    vocab = logits.shape[1]
    in_order = filters.candidates < vocab or not bool((filters.top_k >= vocab).all())
    if in_order or logits.dtype != torch.float32:
        return logit_filters.filter_logits(logits, filters)
    least = _least_of_top_p(logits, logit_filters.rate_free(filters.temperature), filters.top_p)
    least = least.masked_fill(filters.top_p >= 1, -torch.inf)
    logits.masked_fill_(logits < least.unsqueeze(1), -torch.inf)
    return logit_filters.keep_min_p(logits, filters) if filters.any_min_p else logits


def _least_of_top_p(
    logits: torch.Tensor, temperature: torch.Tensor, top_p: torch.Tensor
) -> torch.Tensor:
    """Find [R] the lowest logit of the smallest set of tokens whose probability reaches top-p."""
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
        least[pending] = logit_filters.least_of_top_p(ordered, weights, enough)
        if candidates == vocab:
            break
        pending = pending[weights.sum(dim=-1) < enough]
        candidates = min(candidates * _MORE, vocab)
    return least
