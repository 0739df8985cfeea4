"""Scores of a chunk's queries and keys, multiplied by the decay between their tokens."""

from __future__ import annotations

import torch


def decayed_scores(x: torch.Tensor, k: torch.Tensor, passed: torch.Tensor) -> torch.Tensor:
    """Multiply x and k [Hv, n, Dk] of every two tokens, x of the later one, by the decay between
    them → [Hv, n, n], zeros before. passed [Hv, n, 1 or Dk]: logarithm of the decay from the
    chunk's beginning to a token, of a head or of each channel."""
    count = passed.shape[1]
    later = torch.ones(count, count, dtype=torch.bool).triu(1)[:, :, None]
    by_two = passed[:, :, None] - passed[:, None]  # [Hv, n, n, 1 or Dk]
    left = by_two.masked_fill(later, -torch.inf).exp()
    if left.shape[-1] == 1:
        return x @ k.transpose(1, 2) * left[..., 0]
    return torch.einsum("hid,hjd,hijd->hij", x, k, left)
