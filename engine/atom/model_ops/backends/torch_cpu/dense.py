"""Norms and activation with few temporaries."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from atom.model_ops.activations import Activation, ClampedSiLU, ClampedSwiGLU, Gating
from atom.model_ops.values import NormWeight, Pending, Stream


def rms_norm(x: torch.Tensor, norm: NormWeight) -> torch.Tensor:
    return unit_rms(x, norm.eps).mul_(norm.weight)


def norm(stream: Stream, norm: NormWeight) -> tuple[torch.Tensor, Stream]:
    if stream.pending is None:
        return rms_norm(stream.residual, norm), stream
    assert stream.pending_is is Pending.WHOLE, "this backend's products come whole"
    residual = stream.residual.add_(stream.pending)
    return rms_norm(residual, norm), Stream(residual)


def unit_rms(x: torch.Tensor, eps: float) -> torch.Tensor:
    """Compute x / sqrt(mean(x²) + eps) over the last dimension in float32, a new tensor of x's
    dtype. The norm reads x once and leaves no temporary of its size."""
    wide = x.float()
    norm = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
    return (wide * norm.square_().mul_(1.0 / x.shape[-1]).add_(eps).rsqrt_()).to(x.dtype)


def act_and_mul(x: torch.Tensor, activation: Gating) -> torch.Tensor:
    if activation is Activation.RELU2:
        return x.relu().square_()
    gate, up = x.chunk(2, dim=-1)
    if isinstance(activation, ClampedSwiGLU):
        gate, up = gate.clamp(max=activation.limit), up.clamp(-activation.limit, activation.limit)
        return up.add_(1).mul_(gate).mul_(gate.mul_(activation.alpha).sigmoid_())
    if isinstance(activation, ClampedSiLU):
        gate, up = gate.clamp(max=activation.limit), up.clamp(-activation.limit, activation.limit)
        return F.silu(gate).mul_(up)
    if activation is Activation.SILU:
        return F.silu(gate).mul_(up)
    return F.gelu(gate, approximate="tanh").mul_(up)
