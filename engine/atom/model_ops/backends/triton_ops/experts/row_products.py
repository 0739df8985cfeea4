# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Rows of a matrix by one token, without the tensor core: a program has a tile on its way while it
multiplies the one before.

Codes of MXFP4 are made numbers of float32 by two shifts and masks, 2^-126 of what they should be;
the token, which all rows share, is made 2^100 times as large, and the rest is left to the end. It
is read in planes: a word holds inputs 8w .. 8w + 7, and plane i has the inputs 8w + i.
"""

from __future__ import annotations

import triton
import triton.language as tl

from atom.model_ops.backends.triton_ops.products.word_tiles import fp4_shifted


@triton.jit
def plain_rows(
    x_ptr, w_ptr, n, known, K: tl.constexpr, ROWS: tl.constexpr, BLOCK_K: tl.constexpr
):  # fmt: skip
    """x [K], rows n of W [.., K] → [ROWS] float32."""
    k = tl.arange(0, BLOCK_K)
    w_rows = w_ptr + n[:, None] * K + k[None, :]
    ahead = tl.load(w_rows, mask=known[:, None] & (k < K)[None, :], other=0.0)
    acc = tl.zeros([ROWS, BLOCK_K], tl.float32)
    for start in range(0, K, BLOCK_K):
        w, rest = ahead, K - start - BLOCK_K
        mask = known[:, None] & (k < rest)[None, :]
        ahead = tl.load(w_rows + (start + BLOCK_K), mask=mask, other=0.0)
        x = tl.load(x_ptr + start + k, mask=k < K - start, other=0.0)
        acc += w.to(tl.float32) * x.to(tl.float32)[None, :]
    return tl.sum(acc, axis=1)


@triton.jit
def fp4_rows(
    x_ptr, w_ptr, scale_ptr, n, known, K: tl.constexpr, ROWS: tl.constexpr, WORDS: tl.constexpr
):  # fmt: skip
    """`plain_rows` of W in MXFP4: w_ptr of words [.., K / 8], scale_ptr [.., K / 32], x in planes.
    WORDS: of a tile."""
    word = tl.arange(0, WORDS)
    w_rows = w_ptr + n[:, None] * (K // 8) + word[None, :]
    GROUPS: tl.constexpr = WORDS // 4
    group = tl.arange(0, GROUPS)
    scale_rows = scale_ptr + n[:, None] * (K // 32) + group[None, :]
    ahead = tl.load(w_rows, mask=known[:, None] & (word < K // 8)[None, :], other=0)
    scales_ahead = tl.load(scale_rows, mask=known[:, None] & (group < K // 32)[None, :], other=0)
    acc = tl.zeros([ROWS, GROUPS], tl.float32)
    for start in range(0, K // 8, WORDS):
        words, scales = ahead, scales_ahead
        mask = known[:, None] & (word < K // 8 - start - WORDS)[None, :]
        ahead = tl.load(w_rows + (start + WORDS), mask=mask, other=0)
        further = known[:, None] & (group < K // 32 - (start + WORDS) // 4)[None, :]
        scales_ahead = tl.load(scale_rows + (start + WORDS) // 4, mask=further, other=0)
        sums = fp4_words(words, x_ptr + start + word, word < K // 8 - start, K // 8)
        acc += tl.sum(tl.reshape(sums, (ROWS, GROUPS, 4)), axis=2) * fp4_scale(scales)
    return tl.sum(acc, axis=1) * FP4_REST


# What sums over codes lack: 2^126 of the codes, less what the token was made larger.
FP4_REST: tl.constexpr = tl.constexpr(2.0**26)
_LARGER: tl.constexpr = tl.constexpr(2.0**100)


@triton.jit
def fp4_scale(exponents):
    return (exponents.to(tl.int32) << 23).to(tl.float32, bitcast=True)


@triton.jit
def fp4_words(words, x_at, inside, PLANE: tl.constexpr):
    """words int32 [ROWS, W], x_at pointers [W] to plane 0 → of each word the sum of its eight
    products, [ROWS, W] float32, without scales."""
    sums = tl.zeros(words.shape, tl.float32)
    for i in tl.static_range(4):
        # Nibbles i and i + 4 as bfloat16, in the word's two halves.
        sign, size = fp4_shifted(words, i)
        pair = (sign & -2147450880) | (size & 0x01C001C0)
        low = tl.load(x_at + i * PLANE, mask=inside, other=0.0).to(tl.float32) * _LARGER
        high = tl.load(x_at + (i + 4) * PLANE, mask=inside, other=0.0).to(tl.float32) * _LARGER
        sums += (pair << 16).to(tl.float32, bitcast=True) * low[None, :]
        sums += (pair & -65536).to(tl.float32, bitcast=True) * high[None, :]
    return sums
