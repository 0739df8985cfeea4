# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""The delta rule of Kimi Delta Attention (arXiv 2510.26692) for prompts: chunked_delta_rule.py,
with a separate decay for each channel of a key.

The decay from one token to a later one is then a factor inside the product of their keys. It cannot
be split into one factor for each token: the decay since the chunk's beginning may be too small to
divide by. So two tokens are multiplied at the level of 2, 4 .. 64 neighbours at which they are in
different halves. The later one's key is multiplied by its decay since the middle, the earlier one's
by its decay until the middle, both at most 1, and six products of all tokens contain every pair
once. The first kernel also prepares keys and queries as the state needs them, with the remainders
of the keys' rounding, so that the kernel that processes a row's chunks in order only multiplies.

Shapes: as chunked_delta_rule.py, but a [T, Hv, DK] (heads side by side), dt_bias [Hv, DK]; between
the kernels keys [2 · parts, T, Hv, DK], with their decay since the chunk's beginning and until its
end, queries [T, Hv, DK], and left [chunks, Hv, DK] float32, the state's decay over a chunk. Tiles:
a program of the first has a chunk and a value head; of the second a row, a value head and BLOCK_V
columns. Bound and precision: as there, with keys in two parts.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from atom.model_ops.backends.triton_ops.launch import head_lanes
from atom.model_ops.backends.triton_ops.linear_attention.chunked_delta_rule import (
    CHUNK,
    product,
    product_of_both,
    store_inverse,
)
from atom.model_ops.backends.triton_ops.linear_attention.decay import LINEAR_FROM, log_decay
from atom.model_ops.backends.triton_ops.linear_attention.short_convolution import row_of
from atom.model_ops.linear_attention import DeltaTokens, DeltaWeight
from atom.sizing.states import DeltaShape
from atom.utils.forward_context import AttentionMetaData

# Columns of a state that a program has: AMD's would spill more.
_COLUMNS = 32 if torch.version.hip else 64
_LEVELS = 6  # halvings of a chunk
_BLOCK_K = 64  # channels that are faded at a time
_WARPS, _STAGES = 4, 1


@triton.jit
def _scores_across(q, k, passed, half, ELEMENT: tl.constexpr):
    """Multiply keys and queries of tokens with keys of those in the earlier half of their 2 · half
    neighbours, multiplied by the decay in between: two of [64, 64], zeros elsewhere."""
    token = tl.arange(0, k.shape[0])
    place, is_later = token // half, token // half % 2 == 1
    middle = (place // 2 * 2 + 1) * half
    since = passed - tl.gather(passed, tl.broadcast_to(middle[:, None], passed.shape), axis=0)
    # Since the middle or until there: at most 1 of either.
    fading = tl.exp(tl.where(is_later[:, None], since, -since))
    faded = k * fading
    like_keys = product_of_both(faded, tl.trans(faded), ELEMENT)
    asked, earlier = (q * fading).to(ELEMENT), tl.trans(faded.to(ELEMENT))
    like_queries = tl.dot(asked, earlier, input_precision="ieee")
    is_own = place[:, None] // 2 == place[None, :] // 2
    meet = is_own & is_later[:, None] & (place[None, :] % 2 == 0)
    return tl.where(meet, like_keys, 0.0), tl.where(meet, like_queries, 0.0)


@triton.jit
def _inverse_length(at, within, SIZE: tl.constexpr, LANES: tl.constexpr):
    """Return the factor that scales each token's vector at these places to length one."""
    lane = tl.arange(0, LANES)[None, :]
    x = tl.load(at + lane, mask=within[:, None] & (lane < SIZE), other=0.0).to(tl.float32)
    return tl.rsqrt(tl.sum(x * x, axis=1) + 1e-6)


@triton.jit
def _store_parts(keys_ptr, place, keys, held, rest):
    """Store a tile rounded, and the rounding's remainder `rest` elements further."""
    ELEMENT: tl.constexpr = keys_ptr.dtype.element_ty
    high = keys.to(ELEMENT)
    tl.store(keys_ptr + place, high, mask=held)
    if high.dtype != tl.float32:
        low = (keys - high.to(tl.float32)).to(ELEMENT)
        tl.store(keys_ptr + rest + place, low, mask=held)


@triton.jit(do_not_specialize=["gate_stride", "a_stride", "first_row", "tokens"])
def _channel_systems_kernel(
    qkv_ptr, b_ptr, a_ptr, a_log_ptr, dt_bias_ptr, systems_ptr, attended_ptr, keys_ptr,
    queries_ptr, left_ptr, starts_ptr, gate_stride, a_stride, first_row, tokens,
    HK: tl.constexpr, HV: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr,
    K_LANES: tl.constexpr, BLOCK_K: tl.constexpr, CHUNK: tl.constexpr, LEVELS: tl.constexpr,
    LINEAR_FROM: tl.constexpr,
):  # fmt: skip
    """K_LANES: of a key; tokens: of the step; LEVELS: halvings of a chunk."""
    head = tl.program_id(0)
    row = first_row + tl.program_id(2)
    first = tl.load(starts_ptr + row).to(tl.int64)
    # Rows' chunks side by side, none in the place of another's.
    chunk = first // CHUNK + tl.program_id(2) + tl.program_id(1)
    begin = tl.program_id(1) * CHUNK
    count = tl.load(starts_ptr + row + 1) - first - begin
    if count <= 0:
        return
    first += begin
    token = tl.arange(0, CHUNK)
    within = token < count
    # Neighbouring value heads share a key head.
    at = qkv_ptr + (first + token[:, None]) * (2 * HK * DK + HV * DV) + head // (HV // HK) * DK
    unit_q = _inverse_length(at, within, DK, K_LANES) * (DK**-0.5)
    unit_k = _inverse_length(at + HK * DK, within, DK, K_LANES)
    b = tl.load(b_ptr + (first + token) * gate_stride + head, mask=within, other=0.0)
    beta = tl.where(within, 1.0 / (1.0 + tl.exp(-b.to(tl.float32))), 0.0)
    a_log = tl.load(a_log_ptr + head)
    ELEMENT: tl.constexpr = qkv_ptr.dtype.element_ty
    PARTS: tl.constexpr = 1 if qkv_ptr.dtype.element_ty == tl.float32 else 2
    of_token = (first + token[:, None]) * HV + head
    stride = tokens.to(tl.int64) * HV
    lower = tl.zeros([CHUNK, CHUNK], dtype=tl.float32)
    attended = tl.zeros([CHUNK, CHUNK], dtype=tl.float32)
    # Channels add up, so that registers hold some of them at a time.
    for channel in range(0, K_LANES, BLOCK_K):
        lane = channel + tl.arange(0, BLOCK_K)
        held = within[:, None] & (lane[None, :] < DK)
        q = tl.load(at + lane[None, :], mask=held, other=0.0).to(tl.float32) * unit_q[:, None]
        k = tl.load(at + HK * DK + lane[None, :], mask=held, other=0.0).to(tl.float32)
        k *= unit_k[:, None]
        gates = a_ptr + (first + token[:, None]) * a_stride + head * DK + lane[None, :]
        a = tl.load(gates, mask=held, other=0.0).to(tl.float32)
        a += tl.load(dt_bias_ptr + head * DK + lane, mask=lane < DK, other=0.0)[None, :]
        passed = tl.cumsum(tl.where(held, log_decay(a, a_log, LINEAR_FROM), 0.0), axis=0)
        # A query meets its own token's key unfaded.
        own = tl.sum(q * k, axis=1)[:, None]
        attended += tl.where(token[:, None] == token[None, :], own, 0.0)
        half = CHUNK // 2
        for _ in range(LEVELS):
            like_keys, like_queries = _scores_across(q, k, passed, half, ELEMENT)
            lower += like_keys
            attended += like_queries
            half = half // 2
        whole = tl.sum(tl.where(token[:, None] == CHUNK - 1, passed, 0.0), axis=0)
        since = tl.exp(passed)
        place = of_token * DK + lane[None, :]
        _store_parts(keys_ptr, place, k * since, held, stride * DK)
        ending = keys_ptr + stride * (DK * PARTS)
        _store_parts(ending, place, k * tl.exp(whole[None, :] - passed), held, stride * DK)
        tl.store(queries_ptr + place, (q * since).to(ELEMENT), mask=held)
        left = left_ptr + (chunk * HV + head) * DK + lane
        tl.store(left, tl.exp(whole), mask=lane < DK)
    place = of_token * CHUNK + token[None, :]
    store_inverse(lower * beta[:, None], beta, systems_ptr, place, within, stride * CHUNK)
    tl.store(attended_ptr + place, attended.to(ELEMENT), mask=within[:, None])


@triton.jit(do_not_specialize=["padding_slot", "first_row", "tokens"])
def _channel_states_kernel(
    qkv_ptr, systems_ptr, attended_ptr, keys_ptr, queries_ptr, left_ptr, states_ptr, out_ptr,
    starts_ptr, contexts_ptr, slots_ptr, padding_slot, first_row, tokens,
    HK: tl.constexpr, HV: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr,
    K_LANES: tl.constexpr, BLOCK_V: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """K_LANES: of a key; tokens: of the step."""
    first, count, slot, before = row_of(
        starts_ptr, contexts_ptr, slots_ptr, padding_slot, first_row + tl.program_id(2)
    )
    head = tl.program_id(1)
    token = tl.arange(0, CHUNK)
    lane = tl.arange(0, K_LANES)
    column = tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V)
    held = (lane[:, None] < DK) & (column[None, :] < DV)
    place = states_ptr + ((slot * HV + head) * DK + lane[:, None]) * DV + column[None, :]
    # If the row begins, its slot holds the last sequence's state.
    known_rows = tl.where(before > 0, DK, 0)
    state = tl.load(place, mask=held & (lane[:, None] < known_rows), other=0.0)
    first_chunk = first // CHUNK + tl.program_id(2)
    ELEMENT: tl.constexpr = qkv_ptr.dtype.element_ty
    PARTS: tl.constexpr = 1 if qkv_ptr.dtype.element_ty == tl.float32 else 2
    stride = tokens.to(tl.int64) * HV
    ending = keys_ptr + stride * (DK * PARTS)
    for begin in range(0, count, CHUNK):
        within = token < count - begin
        start = first + begin
        of_token = (start + token[:, None]) * HV + head
        own, in_keys = of_token * DK + lane[None, :], within[:, None] & (lane[None, :] < DK)
        k = tl.load(keys_ptr + own, mask=in_keys, other=0.0)
        until_end = tl.load(ending + own, mask=in_keys, other=0.0)
        q = tl.load(queries_ptr + own, mask=in_keys, other=0.0)
        in_values = within[:, None] & (column[None, :] < DV)
        values = (start + token[:, None]) * (2 * HK * DK + HV * DV) + 2 * HK * DK + head * DV
        v = tl.load(qkv_ptr + values + column[None, :], mask=in_values, other=0.0)
        system = of_token * CHUNK + token[None, :]
        inverse = tl.load(systems_ptr + system, mask=within[:, None], other=0.0)
        attended = tl.load(attended_ptr + system, mask=within[:, None], other=0.0)
        left = left_ptr + ((first_chunk + begin // CHUNK) * HV + head) * DK + lane
        whole = tl.load(left, mask=lane < DK, other=0.0)

        none = tl.zeros([CHUNK, BLOCK_V], dtype=tl.float32)
        known = product(k, state, none)
        if PARTS == 2:
            low = tl.load(keys_ptr + stride * DK + own, mask=in_keys, other=0.0)
            known = tl.dot(low, state.to(ELEMENT), known, input_precision="ieee")
        unknown = v.to(tl.float32) - known
        learnt = product(inverse, unknown, none)
        if PARTS == 2:
            rest = tl.load(systems_ptr + stride * CHUNK + system, mask=within[:, None], other=0.0)
            learnt = tl.dot(rest, unknown.to(ELEMENT), learnt, input_precision="ieee")
        answers = tl.dot(q, state.to(ELEMENT), input_precision="ieee")
        answers = tl.dot(attended, learnt.to(ELEMENT), answers, input_precision="ieee")
        state = product(tl.trans(until_end), learnt, state * whole[:, None])
        if PARTS == 2:
            low = tl.load(ending + stride * DK + own, mask=in_keys, other=0.0)
            state = tl.dot(tl.trans(low), learnt.to(ELEMENT), state, input_precision="ieee")
        found = out_ptr + of_token * DV + column[None, :]
        tl.store(found, answers.to(out_ptr.dtype.element_ty), mask=in_values)
    tl.store(place, state, mask=held & (lane[:, None] < tl.where(count > 0, DK, 0)))


def chunked_kimi_delta(
    tokens: DeltaTokens,
    shape: DeltaShape,
    weight: DeltaWeight,
    states: torch.Tensor,
    step: AttentionMetaData,
) -> torch.Tensor:
    """Compute `gated_delta_rule` by channel for a step's rows after its decodes; the decodes'
    answers are not set."""
    assert step.slots is not None
    count, heads, qkv = len(tokens.qkv), shape.value_heads, tokens.qkv
    rows = len(step.slots) - step.num_decodes
    parts = 1 if qkv.dtype == torch.float32 else 2
    out = qkv.new_empty((count, heads, shape.value_dim))
    systems = qkv.new_empty((parts, count, heads, CHUNK))
    attended = qkv.new_empty((count, heads, CHUNK))
    keys = qkv.new_empty((2 * parts, count, heads, shape.key_dim))
    queries = qkv.new_empty((count, heads, shape.key_dim))
    left = qkv.new_empty((count // CHUNK + rows, heads, shape.key_dim), dtype=torch.float32)
    sizes = {
        "HK": shape.key_heads, "HV": heads, "DK": shape.key_dim, "DV": shape.value_dim,
        "K_LANES": head_lanes(shape.key_dim), "CHUNK": CHUNK,
    }  # fmt: skip
    _channel_systems_kernel[(heads, triton.cdiv(step.max_query_len, CHUNK), rows)](
        qkv, tokens.b, tokens.a, weight.a_log, weight.dt_bias, systems, attended, keys, queries,
        left, step.query_starts, tokens.b.stride(0), tokens.a.stride(0), step.num_decodes, count,
        **sizes, BLOCK_K=min(_BLOCK_K, sizes["K_LANES"]), LEVELS=_LEVELS, LINEAR_FROM=LINEAR_FROM,
        num_warps=_WARPS,
    )  # fmt: skip
    columns = min(_COLUMNS, head_lanes(shape.value_dim))
    _channel_states_kernel[(triton.cdiv(shape.value_dim, columns), heads, rows)](
        qkv, systems, attended, keys, queries, left, states, out,
        step.query_starts, step.context_lens, step.slots,
        len(states) - 1, step.num_decodes, count,
        **sizes, BLOCK_V=columns, num_warps=_WARPS, num_stages=_STAGES,
    )  # fmt: skip
    return out
