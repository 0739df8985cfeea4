# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""The product of an expert's fp8 matrix with its tokens in bfloat16.

As with MXFP4 (fp4_experts.py) a 32-bit word's codes become numbers by shifts and masks, two at
once: inputs 4w + i and 4w + i + 2, of i 0 and 1. A number is 2^-120 of what it should be (2^-119 of
those whose exponents count from 8); activations, which are few, are made 2^60 times as large, and
the rest is left to the scale, so that nothing is multiplied into a weight and nothing rounded.
"""

from __future__ import annotations

import triton
import triton.language as tl

from atom.model_ops.backends.triton_ops.products.word_tiles import two_numbers


@triton.jit
def _inputs(words, BYTE: tl.constexpr):
    """words int32 [N, W] → the inputs BYTE and BYTE + 2 of each word, bfloat16 [N, 2W]."""
    size = words << 4 if BYTE == 0 else words >> 4
    return two_numbers(words << 8 if BYTE == 0 else words, size, None, 0x07F007F0)


@triton.jit
def _tile_product(acc, x0, x1, words):
    acc = tl.dot(_inputs(words, 0), x0, acc)
    return tl.dot(_inputs(words, 1), x1, acc)


@triton.jit
def multiply_fp8(
    rows, real, n, x_ptr, w_ptr, scale_ptr, K: tl.constexpr, N: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GATED: tl.constexpr,
    TALL: tl.constexpr, WIDE: tl.constexpr, REST: tl.constexpr,
):  # fmt: skip
    """Rows of x with rows n of an expert's W (gated: and rows N + n): [M, N] float32, twice. w_ptr:
    of 32-bit words. TALL, WIDE: outputs and inputs that share a scale; a tile lies within. REST:
    what results lack beside their scale."""
    WORDS: tl.constexpr = BLOCK_K // 4
    lane, word = tl.arange(0, BLOCK_K), tl.arange(0, WORDS)
    n = tl.minimum(n, N - 1)  # beyond the last row it is read again, which needs no mask
    x_rows = x_ptr + rows.to(tl.int64)[:, None] * K + lane[None, :]
    w_rows = w_ptr + n.to(tl.int64)[:, None] * (K // 4) + word[None, :]
    up_rows = w_rows + N * (K // 4)
    columns: tl.constexpr = (K + WIDE - 1) // WIDE
    scale_rows = scale_ptr + n // TALL * columns
    up_scale_rows = scale_ptr + (N + n) // TALL * columns
    acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    zero, up = acc, acc
    # Scales are read a tile before they are needed.
    scales = tl.load(scale_rows)
    up_scales = tl.load(up_scale_rows) if GATED else scales
    for k in range(0, K, BLOCK_K):
        x_mask, inside = real[:, None], (word < (K - k) // 4)[None, :]
        if K % BLOCK_K:
            x_mask = x_mask & (lane < K - k)[None, :]
        x = tl.load(x_rows + k, mask=x_mask, other=0.0) * 1152921504606846976.0  # 2^60
        x0, x1 = tl.split(tl.reshape(x.to(tl.bfloat16), (BLOCK_M, BLOCK_K // 2, 2)))
        x0, x1 = tl.trans(x0), tl.trans(x1)
        words = tl.load(w_rows + k // 4, mask=inside, other=0)
        acc += _tile_product(zero, x0, x1, words) * scales[:, None]
        following = tl.minimum(k + BLOCK_K, K - 1) // WIDE
        scales = tl.load(scale_rows + following)
        if GATED:
            words = tl.load(up_rows + k // 4, mask=inside, other=0)
            up += _tile_product(zero, x0, x1, words) * up_scales[:, None]
            up_scales = tl.load(up_scale_rows + following)
    return tl.trans(acc) * REST, tl.trans(up) * REST
