"""The gated delta rule on the CPU: all decodes at once, prompts in chunks.

A chunk's tokens change the state one by one. That is one product of matrices, once a triangular
system is solved for the update of each token (the WY form of arXiv 2406.06484, with the decay of
2412.06464); the state passes from chunk to chunk as from token to token.
"""

from __future__ import annotations

import torch

from atom.model_ops.backends.delta_inputs import DeltaInputs, delta_inputs
from atom.model_ops.backends.state_rows import pass_states
from atom.model_ops.backends.torch_cpu.decayed_scores import decayed_scores
from atom.model_ops.linear_attention import DeltaTokens, DeltaWeight
from atom.sizing.states import DeltaShape
from atom.utils.forward_context import AttentionMetaData

_CHUNK = 64  # tokens: the quadratic and the linear work are about equal
_CHUNK_OF_CHANNELS = 16  # if the decay is per channel


def gated_delta_rule(
    tokens: DeltaTokens,
    shape: DeltaShape,
    weight: DeltaWeight,
    states: torch.Tensor,
    step: AttentionMetaData,
) -> torch.Tensor:
    inputs = delta_inputs(tokens, shape, weight)
    out = torch.empty_like(inputs.v)
    chunk = _CHUNK_OF_CHANNELS if shape.channel_gates else _CHUNK
    pass_states(inputs, states, out, step, _chunk, size=chunk, decode=_decode)
    return out.to(tokens.qkv.dtype)


def _decode(inputs: DeltaInputs, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Go one token further in each of R rows: answers [R, Hv, Dv], states [R, Hv, Dk, Dv]."""
    state = state * inputs.log_decay.exp()[:, :, :, None]
    known = (inputs.k[:, :, None] @ state)[:, :, 0]
    learnt = (inputs.v - known) * inputs.beta[:, :, None]
    state += inputs.k[:, :, :, None] * learnt[:, :, None]
    return (inputs.q[:, :, None] @ state)[:, :, 0], state


def _chunk(inputs: DeltaInputs, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the answers [n, Hv, Dv] of n tokens of a row, and its state [Hv, Dk, Dv] after
    them."""
    q, k, v = (part.transpose(0, 1) for part in (inputs.q, inputs.k, inputs.v))  # [Hv, n, D]
    beta = inputs.beta.t()[:, :, None]
    # [Hv, n, 1 or Dk]: the remaining decay factor of earlier tokens.
    passed = inputs.log_decay.transpose(0, 1).cumsum(1)
    known = decayed_scores(beta * k, k, passed)
    from_state = v - (k * passed.exp()) @ state
    learnt = torch.linalg.solve_triangular(
        known.tril(-1), beta * from_state, upper=False, unitriangular=True
    )
    answers = (q * passed.exp()) @ state + decayed_scores(q, k, passed) @ learnt
    to_end = (passed[:, -1:] - passed).exp()
    state = state * passed[:, -1].exp()[:, :, None] + (k * to_end).transpose(1, 2) @ learnt
    return answers.transpose(0, 1), state
