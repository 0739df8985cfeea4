"""Inputs of the gated delta rule, as every PyTorch backend makes them of a net's tokens.

Called by the backends' delta_net.py; the contract is `Ops.gated_delta_rule`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from atom.model_ops.backends.state_rows import TokenInputs
from atom.model_ops.linear_attention import DeltaTokens, DeltaWeight
from atom.sizing.states import DeltaShape

_EPS = 1e-6  # of the length of a query or key


@dataclass(frozen=True, slots=True)
class DeltaInputs(TokenInputs):
    """Tokens of a delta rule in float32, by value head: q, k [T, Hv, Dk], v [T, Hv, Dv]; beta,
    log_decay [T, Hv, 1], or [T, Hv, Dk] where each channel forgets by itself."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    beta: torch.Tensor
    log_decay: torch.Tensor


def delta_inputs(tokens: DeltaTokens, shape: DeltaShape, weight: DeltaWeight) -> DeltaInputs:
    """Make unit queries and keys of the tokens, and of their gates how much each head learns and
    forgets."""
    keys = shape.key_heads * shape.key_dim
    q, k, v = tokens.qkv.float().split([keys, keys, shape.conv_channels - 2 * keys], dim=1)
    q, k = (
        _unit(part.unflatten(1, (shape.key_heads, shape.key_dim))).repeat_interleave(
            shape.heads_per_key, dim=1
        )
        for part in (q, k)
    )
    a = tokens.a.float() if shape.channel_gates else tokens.a.float()[:, :, None]
    bias = weight.dt_bias.view(shape.value_heads, -1)
    return DeltaInputs(
        q=q * shape.key_dim**-0.5,
        k=k,
        v=v.unflatten(1, (shape.value_heads, shape.value_dim)),
        beta=tokens.b.float().sigmoid(),
        log_decay=-weight.a_log.exp()[:, None] * F.softplus(a + bias),
    )


def _unit(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + _EPS)
