"""Norms and activation with few temporaries, and matrices in the order that products want."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def prepare_linear(weight: torch.Tensor) -> torch.Tensor:
    """Inputs outermost: a product of few rows then needs no rearranged copy of the matrix, which is
    a good part of what a decode step's products cost."""
    return weight.t().contiguous().t()


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return unit_rms(x, eps).mul_(weight)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    residual = residual.add_(x)
    return rms_norm(residual, weight, eps), residual


def unit_rms(x: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x²) + eps) over the last dimension in float32, a new tensor of x's dtype. The
    norm reads x once and leaves no temporary of its size."""
    wide = x.float()
    norm = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
    return (wide * norm.square_().mul_(1.0 / x.shape[-1]).add_(eps).rsqrt_()).to(x.dtype)


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    gate, up = x.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)
