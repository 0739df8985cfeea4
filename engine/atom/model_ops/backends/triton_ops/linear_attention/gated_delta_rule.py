# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""The gated delta rule of decodes, each value head's state in registers; prompts are computed in
chunks.

Shapes: qkv [T, 2·Hk·DK + Hv·DV] contiguous, gates [T, Hv], with a decay per channel a [T, Hv, DK]
(heads side by side), states [slots, Hv, DK, DV] float32. Tile: a program has a row, a value head
and BLOCK_V columns of its state, which are independent of each other: [DK, BLOCK_V] float32. Bound:
the memory that states are read from and written to, once each. A prompt's tokens would be an inner
loop of latency, so chunked_delta_rule.py and chunked_kimi_delta.py compute them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from atom.model_ops.backends.triton_ops.launch import next_power_of_2
from atom.model_ops.backends.triton_ops.linear_attention.chunked_delta_rule import (
    chunked_delta_rule,
)
from atom.model_ops.backends.triton_ops.linear_attention.chunked_kimi_delta import (
    chunked_kimi_delta,
)
from atom.model_ops.backends.triton_ops.linear_attention.decay import LINEAR_FROM, log_decay
from atom.model_ops.backends.triton_ops.linear_attention.short_convolution import row_of
from atom.model_ops.linear_attention import DeltaTokens, DeltaWeight
from atom.sizing.states import DeltaShape
from atom.utils.forward_context import AttentionMetaData

_COLUMNS = 32  # of a state that a program has


@triton.jit
def unit(vector, EPS: tl.constexpr):
    """Scale a vector to length one; EPS: added to its square."""
    return vector * tl.rsqrt(tl.sum(vector * vector, axis=0) + EPS)


@triton.jit(do_not_specialize=["gate_stride", "a_stride", "padding_slot"])
def _delta_rule_kernel(
    qkv_ptr, b_ptr, a_ptr, a_log_ptr, dt_bias_ptr, states_ptr, out_ptr,
    kept_ptr, starts_ptr, contexts_ptr, slots_ptr, gate_stride, a_stride, padding_slot,
    HK: tl.constexpr, HV: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr,
    K_LANES: tl.constexpr, BLOCK_V: tl.constexpr, LINEAR_FROM: tl.constexpr,
    BY_CHANNEL: tl.constexpr,
):  # fmt: skip
    """K_LANES: of a key; BY_CHANNEL: whether each row of a state forgets by itself."""
    first, count, slot, before = row_of(
        starts_ptr, contexts_ptr, slots_ptr, padding_slot, tl.program_id(0)
    )
    head = tl.program_id(1)
    lane = tl.arange(0, K_LANES)
    column = tl.program_id(2) * BLOCK_V + tl.arange(0, BLOCK_V)
    in_key, in_value = lane < DK, column < DV
    held = in_key[:, None] & in_value[None, :]
    place = states_ptr + ((slot * HV + head) * DK + lane[:, None]) * DV + column[None, :]
    # If the row begins, its slot holds the last sequence's state.
    known_rows = tl.where(before > 0, DK, 0)
    state = tl.load(place, mask=held & (lane[:, None] < known_rows), other=0.0)
    a_log = tl.load(a_log_ptr + head)
    if BY_CHANNEL:
        bias = tl.load(dt_bias_ptr + head * DK + lane, mask=in_key, other=0.0)
    else:
        bias = tl.load(dt_bias_ptr + head)
    CHANNELS: tl.constexpr = 2 * HK * DK + HV * DV
    # Neighbouring value heads share a key head.
    key_head = head // (HV // HK)
    kept = count
    if kept_ptr is not None:  # the drafts after them may be rejected
        kept = tl.load(kept_ptr + tl.program_id(0))
    for token in range(count):
        at = qkv_ptr + (first + token) * CHANNELS
        q = tl.load(at + key_head * DK + lane, mask=in_key, other=0.0).to(tl.float32)
        k = tl.load(at + (HK + key_head) * DK + lane, mask=in_key, other=0.0).to(tl.float32)
        v = tl.load(at + 2 * HK * DK + head * DV + column, mask=in_value, other=0.0)
        b = tl.load(b_ptr + (first + token) * gate_stride + head).to(tl.float32)
        gate = a_ptr + (first + token) * a_stride
        if BY_CHANNEL:
            a = tl.load(gate + head * DK + lane, mask=in_key, other=0.0).to(tl.float32) + bias
            state = state * tl.exp(log_decay(a, a_log, LINEAR_FROM))[:, None]
        else:
            a = tl.load(gate + head).to(tl.float32) + bias
            state = state * tl.exp(log_decay(a, a_log, LINEAR_FROM))
        k = unit(k, 1e-6)
        known = tl.sum(k[:, None] * state, axis=0)
        learnt = (v.to(tl.float32) - known) / (1.0 + tl.exp(-b))
        state += k[:, None] * learnt[None, :]
        q = unit(q, 1e-6) * (DK**-0.5)
        answer = tl.sum(q[:, None] * state, axis=0).to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + ((first + token) * HV + head) * DV + column, answer, mask=in_value)
        # A captured step's rows without tokens leave their slots as they are.
        last_rows = tl.where(token == kept - 1, DK, 0)
        tl.store(place, state, mask=held & (lane[:, None] < last_rows))


def gated_delta_rule(
    tokens: DeltaTokens,
    shape: DeltaShape,
    weight: DeltaWeight,
    states: torch.Tensor,
    step: AttentionMetaData,
) -> torch.Tensor:
    assert step.slots is not None
    heads = shape.value_heads
    if step.num_decodes < len(step.slots):
        chunked = chunked_kimi_delta if shape.channel_gates else chunked_delta_rule
        out = chunked(tokens, shape, weight, states, step)
    else:
        out = tokens.qkv.new_empty((len(tokens.qkv), heads, shape.value_dim))
    if step.num_decodes:
        columns = min(_COLUMNS, next_power_of_2(shape.value_dim))
        _delta_rule_kernel[(step.num_decodes, heads, triton.cdiv(shape.value_dim, columns))](
            tokens.qkv, tokens.b, tokens.a, weight.a_log, weight.dt_bias, states, out,
            step.num_kept, step.query_starts, step.context_lens, step.slots,
            tokens.b.stride(0), tokens.a.stride(0), len(states) - 1,
            HK=shape.key_heads, HV=heads, DK=shape.key_dim, DV=shape.value_dim,
            K_LANES=next_power_of_2(shape.key_dim), BLOCK_V=columns, LINEAR_FROM=LINEAR_FROM,
            BY_CHANNEL=shape.channel_gates, num_warps=4,
        )  # fmt: skip
    return out
