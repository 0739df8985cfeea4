"""Mamba-2's state space duality in plain PyTorch: one token after the other."""

from __future__ import annotations

import torch

from atom.model_ops.backends.ssd_inputs import SsdInputs, ssd_inputs
from atom.model_ops.backends.state_rows import pass_states
from atom.model_ops.linear_attention import SsdTokens, SsdWeight
from atom.sizing.states import SsdShape
from atom.utils.forward_context import AttentionMetaData


def state_space_dual(
    tokens: SsdTokens,
    shape: SsdShape,
    weight: SsdWeight,
    states: torch.Tensor,
    step: AttentionMetaData,
) -> torch.Tensor:
    inputs = ssd_inputs(tokens, shape, weight)
    out = torch.empty_like(inputs.learnt)
    pass_states(inputs, states, out, step, _one_by_one)
    return out.to(tokens.qkv.dtype)


def _one_by_one(inputs: SsdInputs, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the answers [tokens, Hv, Dv] of one row, and its state [Hv, Dk, Dv] after them."""
    answers = torch.empty_like(inputs.learnt)
    decay = inputs.log_decay.exp()
    for token in range(len(answers)):
        learnt = inputs.k[token, :, :, None] * inputs.learnt[token, :, None, :]
        state = state * decay[token, :, None, None] + learnt
        answers[token] = torch.einsum("hk,hkv->hv", inputs.q[token], state) + inputs.passed[token]
    return answers, state
