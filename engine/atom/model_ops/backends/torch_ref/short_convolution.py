"""Short convolutions in plain PyTorch, row by row."""

from __future__ import annotations

import torch

from atom.model_ops.backends.state_rows import convolve_rows
from atom.model_ops.linear_attention import ConvWeight
from atom.utils.forward_context import AttentionMetaData


def short_convolution(
    x: torch.Tensor, weight: ConvWeight, tails: torch.Tensor, step: AttentionMetaData
) -> torch.Tensor:
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    convolve_rows(x, weight, tails, step, out)
    return out
