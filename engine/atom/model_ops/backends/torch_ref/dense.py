"""Per-token operations in plain PyTorch: embedding, linear, norms, activation."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from atom.model_ops.activations import Activation, ClampedSiLU, ClampedSwiGLU, Gating
from atom.model_ops.values import LinearWeight, NormWeight, Pending, Stream


def embedding(ids: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.embedding(ids, weight)


def prepare_linear(w: LinearWeight) -> LinearWeight:
    return w


def rms_norm(x: torch.Tensor, norm: NormWeight) -> torch.Tensor:
    # Hugging Face's order: statistics in float32, back to the dtype, then the weight.
    wide = x.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + norm.eps)
    return (norm.weight * wide.to(x.dtype)).to(x.dtype)


def norm(stream: Stream, norm: NormWeight) -> tuple[torch.Tensor, Stream]:
    settled = _settle(stream)
    return rms_norm(settled.residual, norm), settled


def _settle(stream: Stream) -> Stream:
    if stream.pending is None:
        return stream
    addend = stream.pending
    if stream.pending_is is Pending.PARTS:
        addend = addend.sum(dim=0).to(stream.residual.dtype)
    return Stream(addend + stream.residual)


def rotate_heads(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    first, second = x.chunk(2, dim=-1)
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    lower, upper = first * cos - second * sin, second * cos + first * sin
    first.copy_(lower)
    second.copy_(upper)


def act_and_mul(x: torch.Tensor, activation: Gating) -> torch.Tensor:
    if activation is Activation.RELU2:
        return x.relu().square_()
    gate, up = x.chunk(2, dim=-1)
    if isinstance(activation, ClampedSwiGLU):
        gate = gate.clamp(max=activation.limit)
        up = up.clamp(-activation.limit, activation.limit)
        return (up + 1) * (gate * torch.sigmoid(gate * activation.alpha))
    if isinstance(activation, ClampedSiLU):
        gate, up = gate.clamp(max=activation.limit), up.clamp(-activation.limit, activation.limit)
        return F.silu(gate) * up
    if activation is Activation.SILU:
        return F.silu(gate) * up
    return F.gelu(gate, approximate="tanh") * up
