"""What experts in fp8 should answer where the tensor core multiplies codes: in float64, by a loop.

Activations are rounded to e4m3 with a scale for each group of neighbouring inputs of a token, those
of the downs, too; matrices are what their codes mean.
"""

from __future__ import annotations

import torch

from atom.model_ops.activations import ClampedSwiGLU
from atom.model_ops.quantised.dequantise import dequantise
from atom.model_ops.routing import Routed
from atom.model_ops.values import ExpertsWeight, LinearWeight, WeightFormat


def fp8_experts_answer(x: torch.Tensor, w: ExpertsWeight, routed: Routed) -> torch.Tensor:
    """x [T, H] bfloat16 → [T, H] float64."""
    out = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    for expert in range(w.count):
        tokens, chosen = (routed.ids == expert).nonzero(as_tuple=True)
        gate, up = _product(x[tokens], w.gate_up, expert).chunk(2, dim=1)
        # As separate operations round it.
        active = _activated(w, gate.bfloat16().double(), up.bfloat16().double()).bfloat16()
        result = _product(active, w.down, expert) * routed.weights[tokens, chosen, None].double()
        out.index_add_(0, tokens, result)
    return out


def _product(x: torch.Tensor, w: LinearWeight, expert: int) -> torch.Tensor:
    scales = w.scales
    assert scales is not None
    wide = scales.block[1] if w.format is WeightFormat.FP8_BLOCKS else 128
    matrix = dequantise(w.data, scales)[expert].double()
    result = rounded(x, min(wide, 128)) @ matrix.t()
    return result if w.bias is None else result + w.bias[expert].double()


def rounded(x: torch.Tensor, group: int) -> torch.Tensor:
    """x [T, in] with each group of inputs as multiples of its scale that e4m3 has, float64."""
    tokens, inner = x.shape
    groups = -(-inner // group)
    filled = torch.nn.functional.pad(x.float(), (0, -inner % group)).view(tokens, groups, group)
    scale = filled.abs().amax(dim=2, keepdim=True) / torch.finfo(torch.float8_e4m3fn).max
    scale = torch.where(scale > 0, scale, 1.0)
    codes = (filled / scale).to(torch.float8_e4m3fn)
    return (codes.double() * scale.double()).flatten(1)[:, :inner]


def _activated(w: ExpertsWeight, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    if isinstance(w.activation, ClampedSwiGLU):
        limit = w.activation.limit
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
        return (up + 1) * gate * torch.sigmoid(w.activation.alpha * gate)
    return torch.nn.functional.silu(gate).bfloat16().double() * up
