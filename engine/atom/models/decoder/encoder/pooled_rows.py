"""Pool the hidden states of a step's prompts: one vector of each.

Sums are products with a matrix of zeros and ones in float32, so a prompt's vector does not depend
on the order in which a device adds.
"""

from __future__ import annotations

import torch

from atom.pooling_config import TokenPooling
from atom.sizing.overheads import MOST_POOLED


def pooled_rows(
    x: torch.Tensor, starts: torch.Tensor, wanted: torch.Tensor | None, tokens: TokenPooling
) -> torch.Tensor:
    """Pool x [T, H] → [n, H]. starts [R + 1] int32: row i has the tokens starts[i]:starts[i + 1];
    wanted [n] int64: the last token of each prompt, None for every token of rows with one each."""
    ends = torch.arange(len(x), device=x.device) if wanted is None else wanted
    rows = torch.searchsorted(starts, ends.to(starts.dtype), right=True) - 1
    firsts = starts[rows].long()
    if tokens == "lasttoken":
        return x[ends]
    if tokens == "cls":
        return x[firsts]
    at_once = max(1, MOST_POOLED // len(x))
    states = x if tokens == "max" else x.float()
    found = [
        _reduced(states, *part, tokens)
        for part in zip(firsts.split(at_once), ends.split(at_once), strict=True)
    ]
    return torch.cat(found)


def _reduced(
    x: torch.Tensor, firsts: torch.Tensor, ends: torch.Tensor, tokens: TokenPooling
) -> torch.Tensor:
    at = torch.arange(len(x), device=x.device)
    own = (at >= firsts[:, None]) & (at <= ends[:, None])  # [n, T]
    if tokens == "max":
        parts = [x[mask].amax(dim=0) for mask in own]
        return torch.stack(parts)
    counts = own.sum(dim=1, keepdim=True).float()
    divisor = counts.sqrt() if tokens == "mean_sqrt_len_tokens" else counts
    return (own.float() @ x) / divisor
