# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Rows of a matrix by one token, without the tensor core: a program loads a tile while it
multiplies the previous one.

Codes of MXFP4 become float32 numbers by two shifts and masks, 2^-126 of their values; the token,
which all rows share, is scaled by 2^100, and the rest is applied at the end. The token is read in
planes: a word holds inputs 8w .. 8w + 7, and plane i has the inputs 8w + i.
"""

from __future__ import annotations

import triton
import triton.language as tl

from atom.model_ops.backends.triton_ops.gemm.packed_int32 import mxfp4_shifted
from atom.model_ops.backends.triton_ops.mxfp4_layout import exponents_of


@triton.jit
def plain_rows(
    x_ptr, w_ptr, n, known, K: tl.constexpr, ROWS: tl.constexpr, BLOCK_K: tl.constexpr
):  # fmt: skip
    """Map x [K], rows n of W [.., K] → [ROWS] float32."""
    k = tl.arange(0, BLOCK_K)
    w_rows = w_ptr + n[:, None] * K + k[None, :]
    ahead = tl.load(w_rows, mask=known[:, None] & (k < K)[None, :], other=0.0)
    acc = tl.zeros([ROWS, BLOCK_K], tl.float32)
    # One tile ahead by hand: loads without a dot are not pipelined by the compiler.
    for start in range(0, K, BLOCK_K):
        w, rest = ahead, K - start - BLOCK_K
        mask = known[:, None] & (k < rest)[None, :]
        ahead = tl.load(w_rows + (start + BLOCK_K), mask=mask, other=0.0)
        x = tl.load(x_ptr + start + k, mask=k < K - start, other=0.0)
        acc += w.to(tl.float32) * x.to(tl.float32)[None, :]
    return tl.sum(acc, axis=1)


@triton.jit
def mxfp4_w13_rows(
    x_ptr, w_ptr, scale_ptr, first, K: tl.constexpr, N: tl.constexpr, ROWS: tl.constexpr,
    WORDS: tl.constexpr, INTERLEAVED: tl.constexpr,
):  # fmt: skip
    """Multiply x [K] in planes with rows first .. first + ROWS - 1 of w1 and of w3, W [2 · N, K] in
    MXFP4 → [2 · ROWS] float32, gates' first. w_ptr: of words [.., K / 8], scale_ptr [.., K / 32];
    WORDS: of a tile; INTERLEAVED: rows are interleaved by eight, and ROWS is a multiple of
    eight."""
    # A line is a row, or eight interleaved rows, whose lanes are what lies side by side: a run of
    # each of the eight.
    ABREAST: tl.constexpr = 8 if INTERLEAVED else 1
    LINES: tl.constexpr = ROWS // ABREAST
    LANES: tl.constexpr = WORDS * ABREAST
    WIDTH: tl.constexpr = K // 8 * ABREAST
    RUNS: tl.constexpr = K // 128
    WHOLE: tl.constexpr = RUNS * 128 if INTERLEAVED else WIDTH
    HIGH: tl.constexpr = exponents_of(K, INTERLEAVED) * ABREAST
    line, lane, group = tl.arange(0, 2 * LINES), tl.arange(0, LANES), tl.arange(0, LANES // 4)
    if INTERLEAVED:
        word = lane // 128 * 16 + lane % 16
        of_group = group // 64 * 64 + group // 4 % 8 * 8 + group // 32 % 2 * 4 + group % 4
    else:
        word, of_group = lane, group
    # Lines of w1, then as many of w3: one tile, so a load has both on their way.
    at = first // ABREAST + line % LINES
    known = (at < N // ABREAST)[:, None]
    at += line // LINES * (N // ABREAST)
    w_lines, scale_lines = w_ptr + (at * WIDTH)[:, None], scale_ptr + (at * HIGH)[:, None]
    w_at, scale_at = w_lines + lane[None, :], scale_lines + of_group[None, :]
    ahead = tl.load(w_at, mask=known & (lane < WHOLE)[None, :], other=0)
    scales_ahead = tl.load(scale_at, mask=known & (group < WHOLE // 4)[None, :], other=0)
    if WHOLE < WIDTH:  # of each row the last eight words, two groups
        half, pair = tl.arange(0, 64), tl.arange(0, 16)
        last = tl.load(w_lines + (WHOLE + half)[None, :], mask=known, other=0)
        of_pair = RUNS // 2 * 64 + RUNS % 2 * 4 + pair // 2 * 8 + pair % 2
        scales_last = tl.load(scale_lines + of_pair[None, :], mask=known, other=0)
    acc = tl.zeros([2 * LINES, LANES // 4], tl.float32)
    for start in range(0, WHOLE, LANES):
        words, scales, rest = ahead, scales_ahead, WHOLE - start - LANES
        ahead = tl.load(w_at + (start + LANES), mask=known & (lane < rest)[None, :], other=0)
        further = known & (group < rest // 4)[None, :]
        # Of four words one exponent, read with them, a turn ahead.
        scales_ahead = tl.load(scale_at + (start + LANES) // 4, mask=further, other=0)
        x_at = x_ptr + start // ABREAST + word
        sums = mxfp4_dot(words, x_at, lane < WHOLE - start, K // 8)
        # A group's four words are one thread's: this sum stays in registers.
        sums = tl.sum(tl.reshape(sums, (2 * LINES, LANES // 4, 4)), axis=2)
        acc += sums * mxfp4_scale(scales)
    if INTERLEAVED:  # four groups of a row, then those of the next
        acc = tl.sum(tl.reshape(acc, (2 * LINES, LANES // 128, 8, 4)), axis=3)
    sums = tl.sum(acc, axis=1)
    if WHOLE < WIDTH:
        pairs = mxfp4_dot(last, x_ptr + RUNS * 16 + half % 8, half < 64, K // 8)
        pairs = tl.sum(tl.reshape(pairs, (2 * LINES, 16, 4)), axis=2) * mxfp4_scale(scales_last)
        sums += tl.sum(tl.reshape(pairs, (2 * LINES, 8, 2)), axis=2)
    return tl.reshape(sums, (2 * ROWS,)) * MXFP4_REST


# What sums over codes lack: 2^126 of the codes, less what the token was made larger.
MXFP4_REST: tl.constexpr = tl.constexpr(2.0**26)
_LARGER: tl.constexpr = tl.constexpr(2.0**100)


@triton.jit
def mxfp4_scale(exponents):
    return (exponents.to(tl.int32) << 23).to(tl.float32, bitcast=True)


@triton.jit
def mxfp4_dot(words, x_at, inside, PLANE: tl.constexpr):
    """Map words int32 [ROWS, W], x_at pointers [W] to plane 0 → of each word the sum of its eight
    products, [ROWS, W] float32, without scales."""
    sums = tl.zeros(words.shape, tl.float32)
    for i in tl.static_range(4):
        # Nibbles i and i + 4 as bfloat16, in the word's two halves.
        sign, size = mxfp4_shifted(words, i)
        pair = (sign & -2147450880) | (size & 0x01C001C0)
        # Planes of x: a thread's words lie side by side, so each plane is read as one run; the
        # token comes from L1 after its first rows.
        low = tl.load(x_at + i * PLANE, mask=inside, other=0.0).to(tl.float32) * _LARGER
        high = tl.load(x_at + (i + 4) * PLANE, mask=inside, other=0.0).to(tl.float32) * _LARGER
        # bfloat16's bits in the upper half are a float32: the shift is the whole conversion.
        sums += (pair << 16).to(tl.float32, bitcast=True) * low[None, :]
        sums += (pair & -65536).to(tl.float32, bitcast=True) * high[None, :]
    return sums
