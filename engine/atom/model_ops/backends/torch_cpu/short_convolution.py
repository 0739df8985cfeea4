"""Short convolutions on the CPU: all decodes at once, prompts row by row."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from atom.model_ops.backends.state_rows import single_decodes, state_rows, states_before
from atom.model_ops.linear_attention import ConvWeight
from atom.utils.forward_context import AttentionMetaData


def short_convolution(
    x: torch.Tensor, weight: ConvWeight, tails: torch.Tensor, step: AttentionMetaData
) -> torch.Tensor:
    assert step.slots is not None
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    taps, decodes, width = weight.taps.float(), single_decodes(step), tails.shape[2]
    bias = None if weight.bias is None else weight.bias.float()
    if decodes:
        rows = slice(0, decodes)
        before = states_before(tails, step, rows)  # [R, C, W - 1]
        seen = torch.cat((before, x[rows].float()[:, :, None]), dim=2)
        mixed = (seen * taps).sum(-1)
        out[rows] = _activated(mixed if bias is None else mixed + bias, weight)
        tails[step.slots[rows]] = seen[:, :, 1:]
    for row in state_rows(step, decodes):
        before = states_before(tails, step, slice(row.index, row.index + 1))[0]
        seen = torch.cat((before, x[row.own].t().float()), dim=1)  # [C, W - 1 + tokens]
        mixed = F.conv1d(seen[None], taps[:, None], bias, groups=len(taps))[0]
        out[row.own] = _activated(mixed, weight).t()
        kept = row.kept.stop - row.kept.start
        tails[row.slot] = seen[:, kept : kept + width]
    return out


def _activated(mixed: torch.Tensor, weight: ConvWeight) -> torch.Tensor:
    return F.silu(mixed) if weight.has_silu else mixed
