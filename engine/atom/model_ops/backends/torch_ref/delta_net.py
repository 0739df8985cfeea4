"""The gated delta rule in plain PyTorch: one token after the other."""

from __future__ import annotations

import torch

from atom.model_ops.backends.delta_inputs import DeltaInputs, delta_inputs
from atom.model_ops.backends.state_rows import pass_states
from atom.model_ops.linear_attention import DeltaTokens, DeltaWeight
from atom.sizing.states import DeltaShape
from atom.utils.forward_context import AttentionMetaData


def gated_delta_rule(
    tokens: DeltaTokens,
    shape: DeltaShape,
    weight: DeltaWeight,
    states: torch.Tensor,
    step: AttentionMetaData,
) -> torch.Tensor:
    inputs = delta_inputs(tokens, shape, weight)
    out = torch.empty_like(inputs.v)
    pass_states(inputs, states, out, step, _one_by_one)
    return out.to(tokens.qkv.dtype)


def _one_by_one(inputs: DeltaInputs, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the answers [tokens, Hv, Dv] of one row, and its state [Hv, Dk, Dv] after them."""
    answers = torch.empty_like(inputs.v)
    decay = inputs.log_decay.exp()
    for token in range(len(inputs.v)):
        q, k, v = inputs.q[token], inputs.k[token], inputs.v[token]
        state = state * decay[token, :, :, None]
        known = torch.einsum("hk,hkv->hv", k, state)
        learnt = (v - known) * inputs.beta[token, :, None]
        state = state + k[:, :, None] * learnt[:, None, :]
        answers[token] = torch.einsum("hk,hkv->hv", q, state)
    return answers, state
