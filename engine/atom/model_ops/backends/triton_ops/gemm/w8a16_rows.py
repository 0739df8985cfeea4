# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Rows of a matrix in 8 bits by one token, without the tensor core.

A lane has sixteen inputs, whose codes it reads at once. A card converts fp8 to float32 in one and a
half instructions a code, fewer than it takes to arrange 16-bit numbers for the tensor core; sixteen
products are added up before their scale is multiplied in. Activations are not quantised, and the
norm's result is not rounded. Turns are unrolled so that codes are read ahead: a tile kept from turn
to turn, as in gemv_rows.py, would be taken apart, each byte into a separate register.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

# Lanes that a card has side by side.
WAVE = 64 if torch.version.hip else 32
# Inputs of a lane; they share a scale. A read has sixteen bytes: half of the lane's activations.
LANE = tl.constexpr(16)
_HALF = tl.constexpr(8)
_MOST_TURNS = 4


@triton.jit
def lane_inputs(x_at, first, known, inside):
    """Read the activations of lanes that are known [LANES], those below `inside`: x_at pointers
    [LANES], which begin at the inputs `first` [LANES] → each lane's first half and its second,
    [LANES, LANE / 2] float32."""
    k = tl.arange(0, _HALF)[None, :]
    # Halves of eight: 16 bytes of bfloat16, the widest load a thread has.
    low = tl.load(x_at[:, None] + k, mask=known[:, None] & (first[:, None] + k < inside), other=0.0)
    k += _HALF
    high = tl.load(
        x_at[:, None] + k, mask=known[:, None] & (first[:, None] + k < inside), other=0.0
    )
    return low.to(tl.float32), high.to(tl.float32)


@triton.jit
def stream_inputs(x_ptr, residual_ptr, residual_out_ptr, at, K: tl.constexpr):
    """Read `lane_inputs` of lanes that begin at the inputs `at`, added to the residual and rounded;
    the first program writes the sums."""
    dtype = x_ptr.dtype.element_ty
    low, high = lane_inputs(x_ptr + at, at, at >= 0, K)
    # Each program adds the residual again; only the first writes it, to another tensor than all
    # read.
    if residual_ptr is not None:
        more_low, more_high = lane_inputs(residual_ptr + at, at, at >= 0, K)
        low, high = (low + more_low).to(dtype), (high + more_high).to(dtype)
        if tl.program_id(0) == 0:
            k = at[:, None] + tl.arange(0, _HALF)[None, :]
            tl.store(residual_out_ptr + k, low, mask=k < K)
            tl.store(residual_out_ptr + k + _HALF, high, mask=k + _HALF < K)
        low, high = low.to(tl.float32), high.to(tl.float32)
    return low, high


@triton.jit
def lane_sums(codes, low, high):
    """Multiply codes [PARTS, ROWS, K] with what `lane_inputs` gives, and add up by lane → [PARTS,
    ROWS, LANES] float32."""
    PARTS: tl.constexpr = codes.shape[0]
    ROWS: tl.constexpr = codes.shape[1]
    LANES: tl.constexpr = low.shape[0]
    # codes.to(float32) is a hardware conversion of pairs, so products stay in float32 and x is
    # never rounded to fp8.
    halves = tl.reshape(codes.to(tl.float32), (PARTS * ROWS * LANES, 2, _HALF))
    first, last = tl.split(tl.permute(halves, (0, 2, 1)))
    # Four products at a time are added as they are multiplied: a reduction adds them afterwards.
    shape: tl.constexpr = (PARTS, ROWS, LANES, _HALF // 2)
    c0, c1 = _quads(first)
    c2, c3 = _quads(last)
    x0, x1 = _quads(low)
    x2, x3 = _quads(high)
    sums = tl.reshape(c0, shape) * x0[None, None, :, :]
    sums = tl.fma(tl.reshape(c1, shape), x1[None, None, :, :], sums)
    sums = tl.fma(tl.reshape(c2, shape), x2[None, None, :, :], sums)
    sums = tl.fma(tl.reshape(c3, shape), x3[None, None, :, :], sums)
    return tl.sum(sums, axis=3)


@triton.jit
def _quads(x):
    """Map x [N, HALF] → its first four and its last of each row."""
    return tl.split(tl.permute(tl.reshape(x, (x.shape[0], 2, _HALF // 2)), (0, 2, 1)))


@triton.jit
def w8a16_rows(
    x_ptr, w_ptr, scale_ptr, first, PART: tl.constexpr, K: tl.constexpr, PARTS: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_K: tl.constexpr, UNROLL: tl.constexpr, TALL: tl.constexpr,
    WIDE: tl.constexpr, residual_ptr=None, norm_ptr=None, residual_out_ptr=None, eps=0.0,
):  # fmt: skip
    """Multiply x [K] with rows: of each of the parts of W [PARTS · PART, K] those from `first` on →
    [PARTS, ROWS] float32. TALL, WIDE: outputs and inputs that share a scale, as a part's rows do
    here; WIDE 0: one scale per output. UNROLL: turns at once, so that one turn's codes are read
    while another's are multiplied. x is added to the residual, if there is one, and normed, if
    there is norm_ptr: the norm's divisor is the same for all inputs, so the sums are divided at the
    end and no code waits for it."""
    LANES: tl.constexpr = BLOCK_K // LANE
    part, row, k = tl.arange(0, PARTS), tl.arange(0, ROWS), tl.arange(0, BLOCK_K)
    inner = tl.arange(0, LANES) * LANE
    rows = part[:, None] * PART + (first + row)[None, :]
    known = (first + row < PART)[None, :]
    w_rows = w_ptr + rows.to(tl.int64)[:, :, None] * K + k[None, None, :]
    acc = tl.zeros([PARTS, ROWS, LANES], tl.float32)
    # The norm's statistic is summed beside the product: its factor is common to all sums and comes
    # last.
    squares = tl.zeros([LANES, _HALF], tl.float32)
    for start in tl.range(0, K, BLOCK_K, loop_unroll_factor=UNROLL):
        # One mask of rows and inputs; rows beyond the last do not read.
        mask = known[:, :, None] & (k < K - start)[None, None, :]
        codes = tl.load(w_rows + start, mask=mask, other=0.0)
        at = start + inner
        low, high = stream_inputs(x_ptr, residual_ptr, residual_out_ptr, at, K)
        if norm_ptr is not None:
            squares += low * low + high * high
            norm_low, norm_high = lane_inputs(norm_ptr + at, at, at >= 0, K)
            # The weight alone; the root follows at the end, so codes wait for no reduction.
            low, high = low * norm_low, high * norm_high
        acc += lane_sums(codes, low, high) * _scales(
            scale_ptr, first, at, PART, K, PARTS, TALL, WIDE
        )
    result = tl.sum(acc, axis=2)
    if norm_ptr is not None:
        result *= tl.rsqrt(tl.sum(tl.sum(squares, axis=1), axis=0) / K + eps)
    # An output's own scale: after the sum over lanes, once a row.
    if not WIDE:
        result *= tl.load(scale_ptr + rows, mask=known, other=0.0)
    return result


@triton.jit
def _scales(
    scale_ptr, first, at, PART: tl.constexpr, K: tl.constexpr, PARTS: tl.constexpr,
    TALL: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Read the factors of lanes that begin at the inputs `at` [LANES], [PARTS or 1, 1, LANES]; 1 if
    there is one scale per output."""
    if WIDE:
        COLUMNS: tl.constexpr = (K + WIDE - 1) // WIDE
        block = scale_ptr + first // TALL * COLUMNS + at // WIDE
        scales = tl.load(block, mask=at < K, other=0.0)[None, None, :]
        # w1's rows and w3's are in other blocks of scales.
        if PARTS == 2:
            block = scale_ptr + (PART + first) // TALL * COLUMNS + at // WIDE
            others = tl.load(block, mask=at < K, other=0.0)[None, None, :]
            scales = tl.where(tl.arange(0, PARTS)[:, None, None] == 0, scales, others)
        return scales
    else:
        return 1.0


def unrolled(inner: int, block: int) -> int:
    """Choose how many turns are made at once: all of a few."""
    turns = triton.cdiv(inner, block)
    return turns if turns <= _MOST_TURNS else 2
