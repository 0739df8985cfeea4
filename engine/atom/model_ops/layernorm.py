"""RMSNorm, alone or fused with the addition of the residual stream before it."""

from __future__ import annotations

import torch
from torch import nn

from atom.model_ops.backends.interface import Ops


class RMSNorm(nn.Module):
    def __init__(self, dim: int, eps: float, *, ops: Ops) -> None:
        super().__init__()
        self._ops = ops
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(dim), requires_grad=False)

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """x [T, dim] → (normed, residual stream); a missing residual means x begins it."""
        if residual is None:
            return self._ops.rms_norm(x, self.weight, self.eps), x
        return self._ops.add_rms_norm(x, residual, self.weight, self.eps)
