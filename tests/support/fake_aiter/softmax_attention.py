"""Attention of one row's queries over its keys, in float32: what every kernel documents."""

from __future__ import annotations

import torch


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float,
    *,
    window: int = 0,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """q [n, H, D] of the last n of the keys [L, KVH, D] → [n, H, Dv], causal. window: how many
    keys a query sees, its own included, 0 for all; sinks [H] take their share and have no value."""
    group = q.shape[1] // k.shape[1]
    k, v = (x.float().repeat_interleave(group, dim=1) for x in (k, v))
    scores = torch.einsum("nhd,lhd->hnl", q.float(), k) * scale
    count, length = q.shape[0], k.shape[0]
    at = torch.arange(length - count, length).unsqueeze(1)
    key = torch.arange(length)
    seen = key <= at
    if window:
        seen &= key > at - window
    scores = scores.masked_fill(~seen, -torch.inf)
    if sinks is not None:
        scores = torch.cat((scores, sinks.float().view(-1, 1, 1).expand(-1, count, 1)), dim=-1)
    weights = scores.softmax(dim=-1)[..., :length]
    return torch.einsum("hnl,lhd->nhd", weights, v)
