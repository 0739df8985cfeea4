# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""The product of an expert's MXFP4 matrix with its tokens in bfloat16.

Converting codes to numbers is the bottleneck, so eight codes are converted at once
(packed_int32.py). Weights are the tall side of the tensor core's tile and come from registers.
"""

from __future__ import annotations

import triton
import triton.language as tl

from atom.model_ops.backends.triton_ops.gemm.packed_bytes import by_input
from atom.model_ops.backends.triton_ops.gemm.packed_int32 import (
    mxfp4_scales_to_bf16,
    mxfp4_to_bf16,
    quarters,
)


@triton.jit
def _tile_product(acc, x0, x1, x2, x3, words, exponents, N: tl.constexpr, GROUPS: tl.constexpr):
    scales = by_input(mxfp4_scales_to_bf16(exponents), N, GROUPS, 4 * GROUPS)
    # A pair of nibbles of every word, four times: weights never move to their place in K, x is
    # split instead.
    acc = tl.dot(mxfp4_to_bf16(words, scales, 0), x0, acc)
    acc = tl.dot(mxfp4_to_bf16(words, scales, 1), x1, acc)
    acc = tl.dot(mxfp4_to_bf16(words, scales, 2), x2, acc)
    return tl.dot(mxfp4_to_bf16(words, scales, 3), x3, acc)


@triton.jit
def multiply_mxfp4(
    rows, real, n, x_ptr, w_ptr, scale_ptr, K: tl.constexpr, N: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    """Rows of x with rows n of an expert's W (gated: and rows N + n): [M, N] float32, twice. w_ptr:
    of 32-bit words."""
    WORDS: tl.constexpr = BLOCK_K // 8
    GROUPS: tl.constexpr = BLOCK_K // 32
    lane, word, group = tl.arange(0, BLOCK_K), tl.arange(0, WORDS), tl.arange(0, GROUPS)
    n = tl.minimum(n, N - 1)  # beyond the last row it is read again, which needs no mask
    x_rows = x_ptr + rows.to(tl.int64)[:, None] * K + lane[None, :]
    w_rows = w_ptr + n.to(tl.int64)[:, None] * (K // 8) + word[None, :]
    up_rows = w_rows + N * (K // 8)
    scale_rows = scale_ptr + n.to(tl.int64)[:, None] * (K // 32) + group[None, :]
    up_scale_rows = scale_rows + N * (K // 32)
    acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    up = acc
    # Exponents, which are too small to be copied ahead, are read a tile before they are needed.
    mask = (group < K // 32)[None, :]
    exponents = tl.load(scale_rows, mask=mask, other=0)
    up_exponents = tl.load(up_scale_rows, mask=mask, other=0) if GATED else exponents
    for k in range(0, K, BLOCK_K):
        x_mask, inside = real[:, None], (word < (K - k) // 8)[None, :]
        if K % BLOCK_K:
            x_mask = x_mask & (lane < K - k)[None, :]
        x = tl.load(x_rows + k, mask=x_mask, other=0.0)
        # Once for w1 and w3.
        x0, x1, x2, x3 = quarters(x, BLOCK_M, BLOCK_K)
        words = tl.load(w_rows + k // 8, mask=inside, other=0)
        acc = _tile_product(acc, x0, x1, x2, x3, words, exponents, BLOCK_N, GROUPS)
        following = k // 32 + GROUPS
        mask = (group < K // 32 - following)[None, :]
        exponents = tl.load(scale_rows + following, mask=mask, other=0)
        # A second product, not rows of one tile: numbers are made in registers, and a tile of both
        # has twice as many at once.
        if GATED:
            words = tl.load(up_rows + k // 8, mask=inside, other=0)
            up = _tile_product(up, x0, x1, x2, x3, words, up_exponents, BLOCK_N, GROUPS)
            up_exponents = tl.load(up_scale_rows + following, mask=mask, other=0)
    return tl.trans(acc), tl.trans(up)
