"""Top-k, top-p and min-p: the tokens of a row that may be drawn. Shared by the backends.

Each limit is a least logit, so the kept tokens do not depend on the order of equal ones. The host
never waits for the device.
"""

from __future__ import annotations

import torch

from atom.model_ops.backends.interface import LogitFilters


def filter_logits(logits: torch.Tensor, filters: LogitFilters) -> torch.Tensor:
    """See `Ops.filter_logits`."""
    if logits.dtype != torch.float32:
        return filter_logits(logits.float(), filters).to(logits.dtype)
    if filters.candidates:
        least = _least_kept(logits, filters)
        logits.masked_fill_(logits < least.unsqueeze(1), -torch.inf)
    return keep_min_p(logits, filters) if filters.any_min_p else logits


def keep_min_p(logits: torch.Tensor, filters: LogitFilters) -> torch.Tensor:
    """Keep only tokens at least min-p times as likely as the most likely one."""
    least = logits.amax(dim=-1) + rate_free(filters.temperature) * filters.min_p.log()
    return logits.masked_fill_(logits < least.unsqueeze(1), -torch.inf)


def rate_free(temperature: torch.Tensor) -> torch.Tensor:
    """Return the temperatures to divide by: 1 for a greedy row, whose likeliest token is the same
    for any."""
    return torch.where(temperature == 0, 1.0, temperature)


def least_of_top_p(
    ordered: torch.Tensor, weights: torch.Tensor, enough: torch.Tensor
) -> torch.Tensor:
    """Find [R] the lowest logit of the smallest set whose weight reaches `enough` [R].

    ordered, weights [R, C]: logits in descending order, and their weights."""
    weight_before = weights.cumsum(dim=-1) - weights
    # The most likely token is always kept: no token comes before it.
    last = (weight_before < enough.unsqueeze(1)).sum(dim=-1, keepdim=True).clamp(min=1) - 1
    return ordered.gather(1, last).squeeze(1)


def _least_kept(logits: torch.Tensor, filters: LogitFilters) -> torch.Tensor:
    """Find [R] the lowest logit within top-k and then top-p."""
    vocab = logits.shape[1]
    if filters.candidates < vocab:
        ordered = logits.topk(filters.candidates, dim=-1).values
    else:
        ordered = logits.sort(dim=-1, descending=True).values
    last = filters.top_k.clamp(max=ordered.shape[1]).unsqueeze(1) - 1
    least = ordered.gather(1, last).squeeze(1).masked_fill(filters.top_k >= vocab, -torch.inf)
    if not filters.any_top_p:
        return least
    inside = ordered >= least.unsqueeze(1)
    temperature = rate_free(filters.temperature)
    weights = ((ordered - ordered[:, :1]) / temperature.unsqueeze(1)).exp() * inside
    # More tokens may be as likely as the k-th one than there are candidates.
    beyond = (logits >= least.unsqueeze(1)).sum(dim=-1) - inside.sum(dim=-1)
    total = weights.sum(dim=-1) + beyond * ((least - ordered[:, 0]) / temperature).exp()
    least_of_all = least_of_top_p(ordered, weights, filters.top_p * total)
    # Rounding must not cut a row without top-p.
    return torch.maximum(least, least_of_all.masked_fill(filters.top_p >= 1, -torch.inf))
