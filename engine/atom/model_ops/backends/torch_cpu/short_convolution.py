"""Short convolutions on the CPU: all decodes at once, prompts row by row."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from atom.model_ops.backends.state_rows import convolve_rows, single_decodes, states_before
from atom.model_ops.linear_attention import ConvWeight
from atom.utils.forward_context import AttentionMetaData


def short_convolution(
    x: torch.Tensor, weight: ConvWeight, tails: torch.Tensor, step: AttentionMetaData
) -> torch.Tensor:
    assert step.slots is not None
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    if decodes := single_decodes(step):
        rows = slice(0, decodes)
        before = states_before(tails, step, rows)  # [R, C, W - 1]
        seen = torch.cat((before, x[rows].float()[:, :, None]), dim=2)
        mixed = (seen * weight.taps.float()).sum(-1)
        mixed = mixed if weight.bias is None else mixed + weight.bias.float()
        out[rows] = F.silu(mixed) if weight.has_silu else mixed
        tails[step.slots[rows]] = seen[:, :, 1:]
    convolve_rows(x, weight, tails, step, out, first=decodes)
    return out
