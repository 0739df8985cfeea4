"""Scores of a chunk's queries and keys, faded by what is forgotten between their tokens."""

from __future__ import annotations

import torch


def decayed_scores(x: torch.Tensor, k: torch.Tensor, passed: torch.Tensor) -> torch.Tensor:
    """Multiply x and k [Hv, n, Dk] of every two tokens, the later one's x, by what is left of the
    earlier one's until then → [Hv, n, n], zeros before. passed [Hv, n, 1 or Dk]: logarithm of what
    is left at a token of what was before the chunk, of a head or of each channel."""
    count = passed.shape[1]
    later = torch.ones(count, count, dtype=torch.bool).triu(1)[:, :, None]
    by_two = passed[:, :, None] - passed[:, None]  # [Hv, n, n, 1 or Dk]
    left = by_two.masked_fill(later, -torch.inf).exp()
    if left.shape[-1] == 1:
        return x @ k.transpose(1, 2) * left[..., 0]
    return torch.einsum("hid,hjd,hijd->hij", x, k, left)
