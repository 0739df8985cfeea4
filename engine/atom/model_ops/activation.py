"""SiluAndMul: the gated activation of Llama-like MLPs."""

from __future__ import annotations

import torch
from torch import nn

from atom.model_ops.backends.interface import Ops


class SiluAndMul(nn.Module):
    def __init__(self, *, ops: Ops) -> None:
        super().__init__()
        self._ops = ops

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [T, 2·I] → [T, I]
        return self._ops.silu_and_mul(x)
