"""Short convolutions in plain PyTorch, row by row."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from atom.model_ops.backends.state_rows import state_rows, states_before
from atom.model_ops.linear_attention import ConvWeight
from atom.utils.forward_context import AttentionMetaData


def short_convolution(
    x: torch.Tensor, weight: ConvWeight, tails: torch.Tensor, step: AttentionMetaData
) -> torch.Tensor:
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    taps = weight.taps.float()[:, None]
    bias = None if weight.bias is None else weight.bias.float()
    for row in state_rows(step):
        tail = states_before(tails, step, slice(row.index, row.index + 1))[0]
        seen = torch.cat((tail, x[row.own].t().float()), dim=1)  # [C, W - 1 + tokens]
        mixed = F.conv1d(seen[None], taps, bias, groups=len(taps))[0]
        out[row.own] = (F.silu(mixed) if weight.has_silu else mixed).t().to(x.dtype)
        kept = row.kept.stop - row.kept.start
        tails[row.slot] = seen[:, kept : kept + tails.shape[2]]
    return out
