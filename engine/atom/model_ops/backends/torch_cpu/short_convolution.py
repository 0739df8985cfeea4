"""Short convolutions on the CPU: all decodes at once, prompts row by row."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from atom.model_ops.backends.state_rows import states_before
from atom.model_ops.linear_attention import ConvWeight
from atom.utils.forward_context import AttentionMetaData


def short_convolution(
    x: torch.Tensor, weight: ConvWeight, tails: torch.Tensor, step: AttentionMetaData
) -> torch.Tensor:
    assert step.slots is not None
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    taps, decodes, width = weight.taps.float(), step.num_decodes, tails.shape[2]
    bias = None if weight.bias is None else weight.bias.float()
    if decodes:
        rows = slice(0, decodes)
        before = states_before(tails, step, rows)  # [R, C, W - 1]
        seen = torch.cat((before, x[rows].float()[:, :, None]), dim=2)
        mixed = (seen * taps).sum(-1)
        out[rows] = _activated(mixed if bias is None else mixed + bias, weight)
        tails[step.slots[rows]] = seen[:, :, 1:]
    starts, slots = step.query_starts.tolist(), step.slots.tolist()
    for row in range(decodes, len(slots)):
        own = slice(starts[row], starts[row + 1])
        before = states_before(tails, step, slice(row, row + 1))[0]
        seen = torch.cat((before, x[own].t().float()), dim=1)  # [C, W - 1 + tokens]
        mixed = F.conv1d(seen[None], taps[:, None], bias, groups=len(taps))[0]
        out[own] = _activated(mixed, weight).t()
        tails[slots[row]] = seen[:, -width:]
    return out


def _activated(mixed: torch.Tensor, weight: ConvWeight) -> torch.Tensor:
    return F.silu(mixed) if weight.has_silu else mixed
