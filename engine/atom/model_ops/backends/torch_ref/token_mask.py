"""Structured output's mask on the logits, in plain PyTorch."""

from __future__ import annotations

import torch


def apply_token_mask(logits: torch.Tensor, rows: torch.Tensor, bits: torch.Tensor) -> None:
    shifts = torch.arange(32, dtype=torch.int32, device=bits.device)
    allowed = (bits.unsqueeze(2) >> shifts) & 1  # [G, words, 32]; ">>" keeps bit 31 readable
    allowed = allowed.flatten(1)[:, : logits.shape[1]] == 1
    masked = logits.index_select(0, rows).masked_fill_(~allowed, -torch.inf)
    logits.index_copy_(0, rows, masked)
