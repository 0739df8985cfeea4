"""Top-k, top-p and min-p of one row after the other, with as many candidates as it needs itself:
sums over them then have an order that is the row's own."""

from __future__ import annotations

import torch

from atom.model_ops.backends.interface import LogitFilters
from atom.model_ops.backends.logit_filters import filter_logits as filter_rows


def filter_logits(logits: torch.Tensor, filters: LogitFilters) -> torch.Tensor:
    """See `Ops.filter_logits`."""
    for row, own in enumerate(logits.split(1)):
        own.copy_(filter_rows(own, _of_row(filters, row, logits.shape[1])))
    return logits


def _of_row(filters: LogitFilters, row: int, vocab: int) -> LogitFilters:
    only = slice(row, row + 1)
    top_k, top_p, min_p = filters.top_k[only], filters.top_p[only], filters.min_p[only]
    any_top_p = bool(top_p < 1)
    candidates = int(top_k) if int(top_k) < vocab else vocab * any_top_p
    return LogitFilters(
        temperature=filters.temperature[only],
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        candidates=candidates,
        any_top_p=any_top_p,
        any_min_p=bool(min_p > 0),
    )
