# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""The gated delta rule of prompts, in chunks of 64 tokens by its WY form (arXiv 2406.06484, with
the decay of 2412.06464).

The updates of a chunk's tokens are the solution of a triangular system, whose inverse does not
depend on the state. A first kernel computes it for all chunks at once, with the queries' answers to
keys of their own chunk and each token's decays. A second processes a row's chunks in order, with a
value head's columns of the state in registers: five products of matrices a chunk, instead of 64
times two of vectors.

Shapes: as gated_delta_rule.py; between the kernels systems [2, T, Hv, CHUNK], each token's row of
its chunk's inverse and the remainder of its rounding, attended [T, Hv, CHUNK], decays [4, Hv, T]
float32. Tiles: a program of the first has a chunk and a key head with the value heads it serves; of
the second a row, a value head and BLOCK_V columns. Bound: tensor cores, and with few rows the
latency of a chunk. Precision: tokens are multiplied in their own dtype, their lengths being factors
of rows; float32 operands as a rounded part and its remainder, so that states keep 16 bits of each
operand, except for answers, which are rounded anyway. For float32 tokens everything is float32.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from atom.model_ops.backends.triton_ops.launch import compute_units, head_lanes
from atom.model_ops.backends.triton_ops.linear_attention.decay import LINEAR_FROM, log_decay
from atom.model_ops.backends.triton_ops.linear_attention.short_convolution import row_of
from atom.model_ops.linear_attention import DeltaTokens, DeltaWeight
from atom.sizing.states import DeltaShape
from atom.utils.forward_context import AttentionMetaData

CHUNK = 64  # tokens: the quadratic and the linear work are about equal
# Columns of a state that a program has, and stages: narrow where one row shall fill the card, and
# wide, two programs of which share a multiprocessor of NVIDIA's. AMD's would spill a wide one.
_NARROW, _WIDE = (32, 2), (64, 1)


@triton.jit
def product(a, b, acc):
    """Add a · b to acc, of a b in float32, as two parts of a's element."""
    high = b.to(a.dtype)
    acc = tl.dot(a, high, acc, input_precision="ieee")
    if a.dtype != tl.float32:
        low = (b - high.to(tl.float32)).to(a.dtype)
        acc = tl.dot(a, low, acc, input_precision="ieee")
    return acc


@triton.jit
def product_of_both(a, b, ELEMENT: tl.constexpr):
    """Compute a · b of two in float32, as parts of this element."""
    high = a.to(ELEMENT)
    acc = product(high, b, tl.zeros([a.shape[0], b.shape[1]], dtype=tl.float32))
    if high.dtype != tl.float32:
        low = (a - high.to(tl.float32)).to(ELEMENT)
        acc = tl.dot(low, b.to(ELEMENT), acc, input_precision="ieee")
    return acc


@triton.jit
def _inverse(lower, ELEMENT: tl.constexpr):
    """Invert 1 + lower, of a strictly lower triangle [64, 64]: token by token in blocks of 16, as
    exactly as in order, and over the four blocks as a sum of three powers."""
    N: tl.constexpr = lower.shape[0]
    SIZE: tl.constexpr = 16
    BLOCKS: tl.constexpr = N // SIZE
    block = tl.arange(0, BLOCKS)
    of_one = block[:, None, None, None] == block[None, None, :, None]
    by_block = tl.reshape(lower, [BLOCKS, SIZE, BLOCKS, SIZE])
    own = tl.sum(tl.where(of_one, by_block, 0.0), axis=2)
    token = tl.arange(0, SIZE)
    diagonal = token[None, :, None] == token[None, None, :]
    solved = tl.zeros([BLOCKS, SIZE, SIZE], dtype=tl.float32) + tl.where(diagonal, 1.0, 0.0)
    for row in range(1, SIZE):
        here = token[None, :, None] == row
        factors = tl.sum(tl.where(here, own, 0.0), axis=1)
        less = tl.sum(factors[:, :, None] * solved, axis=1)
        solved = tl.where(here, solved - less[:, None, :], solved)
    blocks = tl.reshape(tl.where(of_one, solved[:, :, None, :], 0.0), [N, N])
    place = tl.arange(0, N) // SIZE
    between = tl.where(place[:, None] == place[None, :], 0.0, lower)
    first = product_of_both(blocks, between, ELEMENT)
    second = product_of_both(first, first, ELEMENT)
    third = product_of_both(first, second, ELEMENT)
    return blocks + product_of_both(second - first - third, blocks, ELEMENT)


@triton.jit
def store_inverse(lower, beta, systems_ptr, place, within, rest):
    """Store the inverse of 1 + lower, times each token's learning rate, rounded, and the rounding's
    remainder `rest` elements further."""
    ELEMENT: tl.constexpr = systems_ptr.dtype.element_ty
    inverse = _inverse(lower, ELEMENT) * beta[None, :]
    high = inverse.to(ELEMENT)
    tl.store(systems_ptr + place, high, mask=within[:, None])
    if high.dtype != tl.float32:
        low = (inverse - high.to(tl.float32)).to(ELEMENT)
        tl.store(systems_ptr + rest + place, low, mask=within[:, None])


@triton.jit(do_not_specialize=["gate_stride", "first_row", "tokens"])
def _chunk_systems_kernel(
    qkv_ptr, b_ptr, a_ptr, a_log_ptr, dt_bias_ptr, systems_ptr, attended_ptr, decays_ptr,
    starts_ptr, gate_stride, first_row, tokens,
    HK: tl.constexpr, HV: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr,
    K_LANES: tl.constexpr, CHUNK: tl.constexpr, LINEAR_FROM: tl.constexpr,
):  # fmt: skip
    """K_LANES: of a key; tokens: of the step."""
    key_head = tl.program_id(0)
    row = first_row + tl.program_id(2)
    first = tl.load(starts_ptr + row).to(tl.int64)
    begin = tl.program_id(1) * CHUNK
    count = tl.load(starts_ptr + row + 1) - first - begin
    if count <= 0:
        return
    first += begin
    token = tl.arange(0, CHUNK)
    lane = tl.arange(0, K_LANES)
    within = token < count
    CHANNELS: tl.constexpr = 2 * HK * DK + HV * DV
    at = qkv_ptr + (first + token[:, None]) * CHANNELS + key_head * DK + lane[None, :]
    held = within[:, None] & (lane[None, :] < DK)
    q = tl.load(at, mask=held, other=0.0)
    k = tl.load(at + HK * DK, mask=held, other=0.0)
    ELEMENT: tl.constexpr = k.dtype
    wide_q, wide_k = q.to(tl.float32), k.to(tl.float32)
    unit_q = tl.rsqrt(tl.sum(wide_q * wide_q, axis=1) + 1e-6) * (DK**-0.5)
    unit_k = tl.rsqrt(tl.sum(wide_k * wide_k, axis=1) + 1e-6)
    like_keys = tl.dot(k, tl.trans(k), input_precision="ieee") * unit_k[None, :]
    like_queries = tl.dot(q, tl.trans(k), input_precision="ieee") * unit_k[None, :]
    like_queries *= unit_q[:, None]
    like_keys *= unit_k[:, None]
    earlier = token[:, None] > token[None, :]
    seen = token[:, None] >= token[None, :]
    PER_KEY: tl.constexpr = HV // HK
    for served in range(PER_KEY):
        # Neighbouring value heads share a key head.
        head = key_head * PER_KEY + served
        gate = (first + token) * gate_stride + head
        b = tl.load(b_ptr + gate, mask=within, other=0.0).to(tl.float32)
        a = tl.load(a_ptr + gate, mask=within, other=0.0).to(tl.float32)
        a_log = tl.load(a_log_ptr + head)
        decay = log_decay(a + tl.load(dt_bias_ptr + head), a_log, LINEAR_FROM)
        beta = tl.where(within, 1.0 / (1.0 + tl.exp(-b)), 0.0)
        passed = tl.cumsum(tl.where(within, decay, 0.0), axis=0)
        # The decay from one token to the other; zero for later ones.
        left = tl.exp(tl.where(seen, passed[:, None] - passed[None, :], 0.0))
        lower = tl.where(earlier, beta[:, None] * like_keys * left, 0.0)
        place = ((first + token[:, None]) * HV + head) * CHUNK + token[None, :]
        kind = tokens.to(tl.int64) * HV
        store_inverse(lower, beta, systems_ptr, place, within, kind * CHUNK)
        attended = tl.where(seen, like_queries * left, 0.0)
        tl.store(attended_ptr + place, attended.to(ELEMENT), mask=within[:, None])
        whole = tl.sum(tl.where(within, decay, 0.0), axis=0)
        since = tl.exp(passed)
        decays = decays_ptr + head.to(tl.int64) * tokens + first + token
        tl.store(decays, unit_k * since, mask=within)
        tl.store(decays + kind, unit_q * since, mask=within)
        tl.store(decays + 2 * kind, unit_k * tl.exp(whole - passed), mask=within)
        tl.store(decays + 3 * kind, tl.zeros_like(since) + tl.exp(whole), mask=within)


@triton.jit(do_not_specialize=["padding_slot", "first_row", "tokens"])
def _chunk_states_kernel(
    qkv_ptr, systems_ptr, attended_ptr, decays_ptr, states_ptr, out_ptr,
    starts_ptr, contexts_ptr, slots_ptr, padding_slot, first_row, tokens,
    HK: tl.constexpr, HV: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr,
    K_LANES: tl.constexpr, BLOCK_V: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """K_LANES: of a key; tokens: of the step."""
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
    CHANNELS: tl.constexpr = 2 * HK * DK + HV * DV
    kind = tokens.to(tl.int64) * HV
    for begin in range(0, count, CHUNK):
        within = token < count - begin
        start = first + begin
        at = qkv_ptr + (start + token[:, None]) * CHANNELS
        keys = at + key_head * DK + lane[None, :]
        in_keys = within[:, None] & (lane[None, :] < DK)
        q = tl.load(keys, mask=in_keys, other=0.0)
        k = tl.load(keys + HK * DK, mask=in_keys, other=0.0)
        in_values = within[:, None] & (column[None, :] < DV)
        v = tl.load(at + 2 * HK * DK + head * DV + column[None, :], mask=in_values, other=0.0)
        system = ((start + token[:, None]) * HV + head) * CHUNK + token[None, :]
        inverse = tl.load(systems_ptr + system, mask=within[:, None], other=0.0)
        attended = tl.load(attended_ptr + system, mask=within[:, None], other=0.0)
        decays = decays_ptr + head.to(tl.int64) * tokens + start + token
        of_keys = tl.load(decays, mask=within, other=0.0)
        of_queries = tl.load(decays + kind, mask=within, other=0.0)
        to_end = tl.load(decays + 2 * kind, mask=within, other=0.0)
        whole = tl.load(decays_ptr + 3 * kind + head.to(tl.int64) * tokens + start)

        none = tl.zeros([CHUNK, BLOCK_V], dtype=tl.float32)
        unknown = v.to(tl.float32) - of_keys[:, None] * product(k, state, none)
        learnt = product(inverse, unknown, none)
        if k.dtype != tl.float32:
            rest = tl.load(systems_ptr + kind * CHUNK + system, mask=within[:, None], other=0.0)
            learnt = tl.dot(rest, unknown.to(k.dtype), learnt, input_precision="ieee")
        answers = of_queries[:, None] * tl.dot(q, state.to(k.dtype), input_precision="ieee")
        answers = tl.dot(attended, learnt.to(k.dtype), answers, input_precision="ieee")
        state = product(tl.trans(k), to_end[:, None] * learnt, state * whole)
        found = out_ptr + ((start + token[:, None]) * HV + head) * DV + column[None, :]
        tl.store(found, answers.to(out_ptr.dtype.element_ty), mask=in_values)
    tl.store(place, state, mask=held & (lane[:, None] < tl.where(count > 0, DK, 0)))


def chunk_tile(heads: int, value_dim: int, device: torch.device) -> tuple[int, int]:
    """Choose columns of a state and stages by how many programs the wide tile would have; heads: of
    all rows."""
    fills = heads * triton.cdiv(value_dim, _WIDE[0]) >= 2 * compute_units(device)
    columns, stages = _WIDE if fills and not torch.version.hip else _NARROW
    return min(columns, head_lanes(value_dim)), stages


def chunked_delta_rule(
    tokens: DeltaTokens,
    shape: DeltaShape,
    weight: DeltaWeight,
    states: torch.Tensor,
    step: AttentionMetaData,
) -> torch.Tensor:
    """Compute `gated_delta_rule` for a step's rows after its decodes; the decodes' answers are not
    set."""
    assert step.slots is not None
    assert tokens.b.stride(0) == tokens.a.stride(0), "both are parts of one product"
    count, heads, qkv = len(tokens.qkv), shape.value_heads, tokens.qkv
    rows = len(step.slots) - step.num_decodes
    parts = 1 if qkv.dtype == torch.float32 else 2
    out = qkv.new_empty((count, heads, shape.value_dim))
    systems = qkv.new_empty((parts, count, heads, CHUNK))
    attended = qkv.new_empty((count, heads, CHUNK))
    decays = qkv.new_empty((4, heads, count), dtype=torch.float32)
    lanes = head_lanes(shape.key_dim)
    sizes = {
        "HK": shape.key_heads, "HV": heads, "DK": shape.key_dim, "DV": shape.value_dim,
        "K_LANES": lanes, "CHUNK": CHUNK,
    }  # fmt: skip
    chunks = triton.cdiv(step.max_query_len, CHUNK)
    _chunk_systems_kernel[(shape.key_heads, chunks, rows)](
        qkv, tokens.b, tokens.a, weight.a_log, weight.dt_bias, systems, attended, decays,
        step.query_starts, tokens.b.stride(0), step.num_decodes, count,
        **sizes, LINEAR_FROM=LINEAR_FROM, num_warps=4,
    )  # fmt: skip
    columns, stages = chunk_tile(rows * heads, shape.value_dim, qkv.device)
    _chunk_states_kernel[(triton.cdiv(shape.value_dim, columns), heads, rows)](
        qkv, systems, attended, decays, states, out,
        step.query_starts, step.context_lens, step.slots,
        len(states) - 1, step.num_decodes, count,
        **sizes, BLOCK_V=columns, num_warps=4, num_stages=stages,
    )  # fmt: skip
    return out
