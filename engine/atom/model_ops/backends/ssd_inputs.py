"""Inputs of Mamba-2's rule, as every PyTorch backend makes them of a mixer's tokens.

Called by the backends' state_space_dual.py; the contract is `Ops.state_space_dual`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from atom.model_ops.backends.state_rows import TokenInputs
from atom.model_ops.linear_attention import SsdTokens, SsdWeight
from atom.sizing.states import SsdShape


@dataclass(frozen=True, slots=True)
class SsdInputs(TokenInputs):
    """Tokens in float32, by value head: q, k [T, Hv, Dk]; learnt, the share of a value that is
    taken in, and passed, the share that bypasses the state, [T, Hv, Dv]; log_decay [T, Hv]."""

    q: torch.Tensor
    k: torch.Tensor
    learnt: torch.Tensor
    passed: torch.Tensor
    log_decay: torch.Tensor


def ssd_inputs(tokens: SsdTokens, shape: SsdShape, weight: SsdWeight) -> SsdInputs:
    """Compute each head's learning rates and decays from the tokens' steps."""
    keys = shape.key_heads * shape.key_dim
    q, k, v = tokens.qkv.float().split([keys, keys, shape.conv_channels - 2 * keys], dim=1)
    q, k = (
        part.unflatten(1, (shape.key_heads, shape.key_dim)).repeat_interleave(
            shape.heads_per_key, dim=1
        )
        for part in (q, k)
    )
    v = v.unflatten(1, (shape.value_heads, shape.value_dim))
    taken = F.softplus(tokens.steps.float() + weight.dt_bias)
    return SsdInputs(
        q=q,
        k=k,
        learnt=v * taken[:, :, None],
        passed=v * weight.skip[:, None],
        log_decay=-weight.a_log.exp() * taken,
    )
