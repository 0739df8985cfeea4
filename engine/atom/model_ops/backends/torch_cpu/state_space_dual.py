"""Mamba-2's state space duality on the CPU: all decodes at once, prompts in chunks.

Within a chunk it is attention whose scores are multiplied by the decay between the tokens (arXiv
2405.21060, section 6); the state passes from chunk to chunk as from token to token.
"""

from __future__ import annotations

import torch

from atom.model_ops.backends.ssd_inputs import SsdInputs, ssd_inputs
from atom.model_ops.backends.state_rows import pass_states
from atom.model_ops.backends.torch_cpu.decayed_scores import decayed_scores
from atom.model_ops.linear_attention import SsdTokens, SsdWeight
from atom.sizing.states import SsdShape
from atom.utils.forward_context import AttentionMetaData

_CHUNK = 64  # tokens: the quadratic and the linear work are about equal


def state_space_dual(
    tokens: SsdTokens,
    shape: SsdShape,
    weight: SsdWeight,
    states: torch.Tensor,
    step: AttentionMetaData,
) -> torch.Tensor:
    inputs = ssd_inputs(tokens, shape, weight)
    out = torch.empty_like(inputs.learnt)
    pass_states(inputs, states, out, step, _chunk, size=_CHUNK, decode=_decode)
    return out.to(tokens.qkv.dtype)


def _decode(inputs: SsdInputs, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Go one token further in each of R rows: answers [R, Hv, Dv], states [R, Hv, Dk, Dv]."""
    state = state * inputs.log_decay.exp()[:, :, None, None]
    state += inputs.k[:, :, :, None] * inputs.learnt[:, :, None]
    return (inputs.q[:, :, None] @ state)[:, :, 0] + inputs.passed, state


def _chunk(inputs: SsdInputs, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the answers [n, Hv, Dv] of n tokens of a row, and its state [Hv, Dk, Dv] after
    them."""
    q, k, v = (part.transpose(0, 1) for part in (inputs.q, inputs.k, inputs.learnt))  # [Hv, n, D]
    # [Hv, n, 1]: the remaining decay factor of earlier tokens.
    passed = inputs.log_decay.t().cumsum(1)[:, :, None]
    answers = (q * passed.exp()) @ state + decayed_scores(q, k, passed) @ v
    to_end = (passed[:, -1:] - passed).exp()
    state = state * passed[:, -1:].exp() + (k * to_end).transpose(1, 2) @ v
    return answers.transpose(0, 1) + inputs.passed, state
