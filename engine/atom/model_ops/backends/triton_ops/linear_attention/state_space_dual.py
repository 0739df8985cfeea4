# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Mamba-2's state space duality: decodes by their states, prompts in chunks of 64 tokens (arXiv
2405.21060, section 6).

Within a chunk it is attention whose scores are multiplied by the decay between the tokens. No
system must be solved, so one kernel processes a row's chunks in order, without intermediate results
in memory. Models have 48 to 128 value heads, so each row fills a card.

Shapes: qkv [T, 2·Hk·DK + Hv·DV] contiguous, steps [T, Hv] (rows of a wider tensor), states [slots,
Hv, DK, DV] float32. Tile: a program has a row, a value head and BLOCK_V columns of its state, which
are independent of each other: [DK, BLOCK_V] float32. Bound: for decodes the memory that states are
read from and written to, once each; for prompts tensor cores. Precision: tokens are multiplied in
their own dtype; a state's updates as a rounded part and its remainder, so that it keeps 16 bits;
for float32 tokens everything is float32.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from atom.model_ops.backends.triton_ops.launch import head_lanes, next_power_of_2
from atom.model_ops.backends.triton_ops.linear_attention.chunked_delta_rule import (
    CHUNK,
    chunk_tile,
    product,
)
from atom.model_ops.backends.triton_ops.linear_attention.decay import LINEAR_FROM, softplus
from atom.model_ops.backends.triton_ops.linear_attention.short_convolution import row_of
from atom.model_ops.linear_attention import SsdTokens, SsdWeight
from atom.sizing.states import SsdShape
from atom.utils.forward_context import AttentionMetaData

_COLUMNS = 32  # of a state that a program of decodes has


@triton.jit(do_not_specialize=["step_stride", "padding_slot"])
def _step_kernel(
    qkv_ptr, steps_ptr, a_log_ptr, dt_bias_ptr, skip_ptr, states_ptr, out_ptr,
    kept_ptr, starts_ptr, contexts_ptr, slots_ptr, step_stride, padding_slot,
    HK: tl.constexpr, HV: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr,
    K_LANES: tl.constexpr, BLOCK_V: tl.constexpr, LINEAR_FROM: tl.constexpr,
):  # fmt: skip
    """K_LANES: of a key."""
    first, count, slot, before = row_of(
        starts_ptr, contexts_ptr, slots_ptr, padding_slot, tl.program_id(0)
    )
    head = tl.program_id(1)
    # Neighbouring value heads share a key head.
    key_head = head // (HV // HK)
    lane = tl.arange(0, K_LANES)
    column = tl.program_id(2) * BLOCK_V + tl.arange(0, BLOCK_V)
    in_key, in_value = lane < DK, column < DV
    held = in_key[:, None] & in_value[None, :]
    place = states_ptr + ((slot * HV + head) * DK + lane[:, None]) * DV + column[None, :]
    # If the row begins, its slot holds the last sequence's state.
    known_rows = tl.where(before > 0, DK, 0)
    state = tl.load(place, mask=held & (lane[:, None] < known_rows), other=0.0)
    rate = -tl.exp(tl.load(a_log_ptr + head))
    bias, skip = tl.load(dt_bias_ptr + head), tl.load(skip_ptr + head)
    kept = count
    if kept_ptr is not None:  # the drafts after them may be rejected
        kept = tl.load(kept_ptr + tl.program_id(0))
    for token in range(count):
        at = qkv_ptr + (first + token) * (2 * HK * DK + HV * DV)
        q = tl.load(at + key_head * DK + lane, mask=in_key, other=0.0).to(tl.float32)
        k = tl.load(at + (HK + key_head) * DK + lane, mask=in_key, other=0.0).to(tl.float32)
        v = tl.load(at + 2 * HK * DK + head * DV + column, mask=in_value, other=0.0)
        step = tl.load(steps_ptr + (first + token) * step_stride + head).to(tl.float32)
        taken, wide_v = softplus(step + bias, LINEAR_FROM), v.to(tl.float32)
        state = state * tl.exp(rate * taken) + k[:, None] * (taken * wide_v)[None, :]
        answer = tl.sum(q[:, None] * state, axis=0) + skip * wide_v
        found = out_ptr + ((first + token) * HV + head) * DV + column
        tl.store(found, answer.to(out_ptr.dtype.element_ty), mask=in_value)
        last_rows = tl.where(token == kept - 1, DK, 0)
        tl.store(place, state, mask=held & (lane[:, None] < last_rows))


@triton.jit(do_not_specialize=["step_stride", "padding_slot", "first_row"])
def _chunks_kernel(
    qkv_ptr, steps_ptr, a_log_ptr, dt_bias_ptr, skip_ptr, states_ptr, out_ptr,
    starts_ptr, contexts_ptr, slots_ptr, step_stride, padding_slot, first_row,
    HK: tl.constexpr, HV: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr,
    K_LANES: tl.constexpr, BLOCK_V: tl.constexpr, CHUNK: tl.constexpr, LINEAR_FROM: tl.constexpr,
):  # fmt: skip
    """K_LANES: of a key."""
    first, count, slot, before = row_of(
        starts_ptr, contexts_ptr, slots_ptr, padding_slot, first_row + tl.program_id(2)
    )
    head = tl.program_id(1)
    key_head = head // (HV // HK)
    token = tl.arange(0, CHUNK)
    lane = tl.arange(0, K_LANES)
    column = tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V)
    held = (lane[:, None] < DK) & (column[None, :] < DV)
    place = states_ptr + ((slot * HV + head) * DK + lane[:, None]) * DV + column[None, :]
    # If the row begins, its slot holds the last sequence's state.
    known_rows = tl.where(before > 0, DK, 0)
    state = tl.load(place, mask=held & (lane[:, None] < known_rows), other=0.0)
    rate = -tl.exp(tl.load(a_log_ptr + head))
    bias, skip = tl.load(dt_bias_ptr + head), tl.load(skip_ptr + head)
    seen = token[:, None] >= token[None, :]
    for begin in range(0, count, CHUNK):
        within = token < count - begin
        start = first + begin
        at = qkv_ptr + (start + token[:, None]) * (2 * HK * DK + HV * DV)
        keys = at + key_head * DK + lane[None, :]
        in_keys = within[:, None] & (lane[None, :] < DK)
        q = tl.load(keys, mask=in_keys, other=0.0)
        k = tl.load(keys + HK * DK, mask=in_keys, other=0.0)
        in_values = within[:, None] & (column[None, :] < DV)
        v = tl.load(at + 2 * HK * DK + head * DV + column[None, :], mask=in_values, other=0.0)
        step = tl.load(steps_ptr + (start + token) * step_stride + head, mask=within, other=0.0)
        taken = tl.where(within, softplus(step.to(tl.float32) + bias, LINEAR_FROM), 0.0)
        passed = tl.cumsum(rate * taken, axis=0)
        whole = rate * tl.sum(taken, axis=0)

        # The decay from one token to the other; zero for later ones.
        left = tl.exp(tl.where(seen, passed[:, None] - passed[None, :], 0.0))
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * left * taken[None, :]
        answers = tl.dot(q, state.to(k.dtype), input_precision="ieee") * tl.exp(passed)[:, None]
        scores = tl.where(seen, scores, 0.0).to(k.dtype)
        answers = tl.dot(scores, v, answers, input_precision="ieee")
        wide_v = v.to(tl.float32)
        answers += skip * wide_v
        learnt = (taken * tl.exp(whole - passed))[:, None] * wide_v
        state = product(tl.trans(k), learnt, state * tl.exp(whole))
        found = out_ptr + ((start + token[:, None]) * HV + head) * DV + column[None, :]
        tl.store(found, answers.to(out_ptr.dtype.element_ty), mask=in_values)
    # A captured step's rows without tokens leave their slots as they are.
    tl.store(place, state, mask=held & (lane[:, None] < tl.where(count > 0, DK, 0)))


def state_space_dual(
    tokens: SsdTokens,
    shape: SsdShape,
    weight: SsdWeight,
    states: torch.Tensor,
    step: AttentionMetaData,
) -> torch.Tensor:
    assert step.slots is not None
    qkv, heads, size = tokens.qkv, shape.value_heads, shape.value_dim
    out = qkv.new_empty((len(qkv), heads, size))
    inputs = (qkv, tokens.steps, weight.a_log, weight.dt_bias, weight.skip, states, out)
    place = (
        step.query_starts, step.context_lens, step.slots, tokens.steps.stride(0), len(states) - 1,
    )  # fmt: skip
    sizes = {"HK": shape.key_heads, "HV": heads, "DK": shape.key_dim, "DV": size}
    rows = len(step.slots) - step.num_decodes
    if step.num_decodes:
        columns = min(_COLUMNS, next_power_of_2(size))
        _step_kernel[(step.num_decodes, heads, triton.cdiv(size, columns))](
            *inputs, step.num_kept, *place, **sizes, K_LANES=next_power_of_2(shape.key_dim),
            BLOCK_V=columns, LINEAR_FROM=LINEAR_FROM, num_warps=4,
        )  # fmt: skip
    if rows:
        columns, stages = chunk_tile(rows * heads, size, qkv.device)
        _chunks_kernel[(triton.cdiv(size, columns), heads, rows)](
            *inputs, *place, step.num_decodes, **sizes, K_LANES=head_lanes(shape.key_dim),
            BLOCK_V=columns, CHUNK=CHUNK, LINEAR_FROM=LINEAR_FROM,
            # AMD's would spill a second stage.
            num_warps=4, num_stages=1 if torch.version.hip else stages,
        )  # fmt: skip
    return out
