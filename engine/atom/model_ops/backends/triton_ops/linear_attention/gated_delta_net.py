# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""A gated delta net between its projections: decodes in one kernel, from the convolution to the
gated norm; steps with prompts by a kernel for each operation.

Shapes: qkv [R, C], b, a [R, Hv] and z [R, Hv·DV] (rows of wider tensors), conv [C, W], states
[slots, Hv, DK, DV] and tails [slots, C, W - 1] float32. Tile: a program has a row, a key head and
the value heads it serves, one after the other, each with its whole state. It alone convolves these
channels, so it may advance their tails, and a norm is over a whole head. Bound: the memory that
states are read from and written to, once each; with few rows, the saved launches.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import triton
import triton.language as tl

from atom.model_ops.backends.triton_ops.launch import next_power_of_2
from atom.model_ops.backends.triton_ops.linear_attention.decay import LINEAR_FROM, log_decay
from atom.model_ops.backends.triton_ops.linear_attention.gated_delta_rule import (
    gated_delta_rule,
    unit,
)
from atom.model_ops.backends.triton_ops.linear_attention.short_convolution import short_convolution
from atom.model_ops.linear_attention import ConvWeight, DeltaNetWeight, DeltaSlots, DeltaTokens
from atom.utils.forward_context import AttentionMetaData

_WARPS = 8  # a state of 128 × 128 is 64 registers of each thread
_NORM_ROWS = 16  # heads of tokens that a program norms


@triton.jit
def _window(x_ptr, tail_ptr, channel, held, before, WIDTH: tl.constexpr):
    """Load the convolution's inputs of these channels, [channels, lanes]: the tail, then the newest
    token."""
    lane = tl.arange(0, next_power_of_2(WIDTH))[None, :]
    # If the row begins, its slot holds the last sequence's state.
    there = held[:, None] & (lane < WIDTH - 1) & (lane >= WIDTH - 1 - before)
    tail = tl.load(tail_ptr + channel[:, None] * (WIDTH - 1) + lane, mask=there, other=0.0)
    newest = tl.load(x_ptr + channel, mask=held, other=0.0).to(tl.float32)
    return tl.where(lane == WIDTH - 1, newest[:, None], tail)


@triton.jit
def _convolved(window, conv_ptr, channel, held, WIDTH: tl.constexpr):
    lane = tl.arange(0, next_power_of_2(WIDTH))[None, :]
    place = conv_ptr + channel[:, None] * WIDTH + lane
    weight = tl.load(place, mask=held[:, None] & (lane < WIDTH), other=0.0)
    mixed = tl.sum(window * weight.to(tl.float32), axis=1)
    # x / (1 + e^-x) is -0 far below 0, never NaN.
    return mixed / (1.0 + tl.exp(-mixed))


@triton.jit
def _move_on(window, tail_ptr, channel, held, WIDTH: tl.constexpr):
    """Store the tail that ends with the newest token, once all threads have loaded theirs."""
    lane = tl.arange(0, next_power_of_2(WIDTH))[None, :]
    place = tail_ptr + channel[:, None] * (WIDTH - 1) + lane - 1
    tl.store(place, window, mask=held[:, None] & (lane > 0) & (lane < WIDTH))


@triton.jit(do_not_specialize=["qkv_stride", "gate_stride", "z_stride", "padding_slot"])
def _delta_net_kernel(
    qkv_ptr, b_ptr, a_ptr, z_ptr, conv_ptr, a_log_ptr, dt_bias_ptr, norm_ptr, eps,
    states_ptr, tails_ptr, out_ptr, contexts_ptr, slots_ptr,
    qkv_stride, gate_stride, z_stride, padding_slot,
    HK: tl.constexpr, HV: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr,
    WIDTH: tl.constexpr, LINEAR_FROM: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    key_head = tl.program_id(1)
    slot = tl.load(slots_ptr + row)
    # A captured step's padding names no slot: it works on the one that no sequence has.
    slot = tl.where(slot < 0, padding_slot, slot).to(tl.int64)
    before = tl.load(contexts_ptr + row) - 1
    CHANNELS: tl.constexpr = 2 * HK * DK + HV * DV
    PER_KEY: tl.constexpr = HV // HK
    lane = tl.arange(0, next_power_of_2(DK))
    column = tl.arange(0, next_power_of_2(DV))
    in_key, in_value = lane < DK, column < DV
    x = qkv_ptr + row * qkv_stride
    tail = tails_ptr + slot * (CHANNELS * (WIDTH - 1))
    queries = key_head * DK + lane
    keys = HK * DK + queries
    of_q = _window(x, tail, queries, in_key, before, WIDTH)
    of_k = _window(x, tail, keys, in_key, before, WIDTH)
    q = unit(_convolved(of_q, conv_ptr, queries, in_key, WIDTH), 1e-6) * (DK**-0.5)
    k = unit(_convolved(of_k, conv_ptr, keys, in_key, WIDTH), 1e-6)
    tl.debug_barrier()
    _move_on(of_q, tail, queries, in_key, WIDTH)
    _move_on(of_k, tail, keys, in_key, WIDTH)
    # If the row begins, its slot holds the last sequence's state.
    known = (lane[:, None] < tl.where(before > 0, DK, 0)) & in_value[None, :]
    norm = tl.load(norm_ptr + column, mask=in_value, other=0.0).to(tl.float32)
    for served in range(PER_KEY):
        # Neighbouring value heads share a key head.
        head = key_head * PER_KEY + served
        place = (slot * HV + head) * (DK * DV) + lane[:, None] * DV + column[None, :]
        state = tl.load(states_ptr + place, mask=known, other=0.0)
        values = 2 * HK * DK + head * DV + column
        of_v = _window(x, tail, values, in_value, before, WIDTH)
        v = _convolved(of_v, conv_ptr, values, in_value, WIDTH)
        tl.debug_barrier()
        _move_on(of_v, tail, values, in_value, WIDTH)
        b = tl.load(b_ptr + row * gate_stride + head).to(tl.float32)
        a = tl.load(a_ptr + row * gate_stride + head).to(tl.float32)
        a_log = tl.load(a_log_ptr + head)
        state *= tl.exp(log_decay(a + tl.load(dt_bias_ptr + head), a_log, LINEAR_FROM))
        learnt = (v - tl.sum(k[:, None] * state, axis=0)) / (1.0 + tl.exp(-b))
        state += k[:, None] * learnt[None, :]
        tl.store(states_ptr + place, state, mask=in_key[:, None] & in_value[None, :])
        answer = tl.sum(q[:, None] * state, axis=0)
        scale = tl.rsqrt(tl.sum(answer * answer, axis=0) / DV + eps)
        z = tl.load(z_ptr + row * z_stride + head * DV + column, mask=in_value, other=0.0)
        z = z.to(tl.float32)
        gated = answer * scale * norm * (z / (1.0 + tl.exp(-z)))
        found = out_ptr + (row * HV + head) * DV + column
        tl.store(found, gated.to(out_ptr.dtype.element_ty), mask=in_value)


@triton.jit(do_not_specialize=["rows", "z_stride"])
def _gated_norm_kernel(
    x_ptr, norm_ptr, eps, z_ptr, out_ptr, rows, z_stride,
    HV: tl.constexpr, DV: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """rows: tokens times value heads."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, next_power_of_2(DV))[None, :]
    held = (row < rows) & (column < DV)
    x = tl.load(x_ptr + row * DV + column, mask=held, other=0.0).to(tl.float32)
    at = row // HV * z_stride + row % HV * DV + column
    z = tl.load(z_ptr + at, mask=held, other=0.0).to(tl.float32)
    norm = tl.load(norm_ptr + column, mask=column < DV, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, axis=1) / DV + eps)[:, None]
    gated = x * scale * norm * (z / (1.0 + tl.exp(-z)))
    tl.store(out_ptr + row * DV + column, gated.to(out_ptr.dtype.element_ty), mask=held)


def gated_delta_net(
    tokens: DeltaTokens,
    z: torch.Tensor,
    weight: DeltaNetWeight,
    kept: DeltaSlots,
    step: AttentionMetaData,
) -> torch.Tensor:
    assert step.slots is not None
    if step.num_decodes == len(step.slots) and step.num_kept is None:
        return _of_decodes(tokens, z, weight, kept, step)
    mixed = short_convolution(tokens.qkv, ConvWeight(weight.conv), kept.tails, step)
    mixed_tokens = replace(tokens, qkv=mixed)
    found = gated_delta_rule(mixed_tokens, kept.shape, weight.rule, kept.states, step)
    heads, size = found.shape[1:]
    rows = len(found) * heads
    _gated_norm_kernel[(triton.cdiv(rows, _NORM_ROWS),)](
        found, weight.norm.weight, weight.norm.eps, z, found, rows, z.stride(0),
        HV=heads, DV=size, ROWS=_NORM_ROWS, num_warps=4,
    )  # fmt: skip
    return found.flatten(1)


def _of_decodes(
    tokens: DeltaTokens,
    z: torch.Tensor,
    weight: DeltaNetWeight,
    kept: DeltaSlots,
    step: AttentionMetaData,
) -> torch.Tensor:
    assert step.slots is not None
    shape, rows = kept.shape, len(step.slots)
    out = torch.empty((rows, shape.value_heads * shape.value_dim), dtype=z.dtype, device=z.device)
    _delta_net_kernel[(rows, shape.key_heads)](
        tokens.qkv, tokens.b, tokens.a, z, weight.conv,
        weight.rule.a_log, weight.rule.dt_bias, weight.norm.weight, weight.norm.eps,
        kept.states, kept.tails, out, step.context_lens, step.slots,
        tokens.qkv.stride(0), tokens.b.stride(0), z.stride(0), len(kept.states) - 1,
        HK=shape.key_heads, HV=shape.value_heads, DK=shape.key_dim, DV=shape.value_dim,
        WIDTH=shape.conv_width, LINEAR_FROM=LINEAR_FROM, num_warps=_WARPS,
    )  # fmt: skip
    return out
