# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""The product of an expert's MXFP4 matrix with its tokens in bfloat16.

What holds it back is making numbers of codes, so eight codes are taken at once. A 32-bit word has
inputs 8w .. 8w + 7; nibbles i and i + 4 are moved to the places that sign, exponent and fraction
have in a word's two bfloat16, by two shifts and masks for both. A number is then 2^-126 of what it
should be, ½ and 0 included, which the scale that is multiplied in makes good. So tile i has of
every word the inputs i and i + 4, and the activations are divided in the same way.

Weights are the tall side of the tensor core's tile and come from registers.
"""

from __future__ import annotations

import triton
import triton.language as tl

from atom.model_ops.backends.triton_ops.products.word_tiles import two_numbers


@triton.jit
def _inputs(words, scales, NIBBLE: tl.constexpr):
    """words int32 [N, W], scales bfloat16 [N, W] → the inputs NIBBLE and NIBBLE + 4 of each word,
    bfloat16 [N, 2W]."""
    size = words << (6 - 4 * NIBBLE) if NIBBLE < 2 else words >> (4 * NIBBLE - 6)
    return two_numbers(words << (12 - 4 * NIBBLE), size, scales, 0x01C001C0)


@triton.jit
def _by_word(exponents, N: tl.constexpr, GROUPS: tl.constexpr):
    """Exponents uint8 [N, GROUPS] of groups of four words → 2^126 × scales, [N, 4 · GROUPS]."""
    bits = (exponents.to(tl.int16) + 126) << 7
    scales = bits.to(tl.bfloat16, bitcast=True)
    return tl.reshape(tl.broadcast_to(scales[:, :, None], (N, GROUPS, 4)), (N, 4 * GROUPS))


@triton.jit
def _tile_product(acc, x0, x1, x2, x3, words, exponents, N: tl.constexpr, GROUPS: tl.constexpr):
    scales = _by_word(exponents, N, GROUPS)
    acc = tl.dot(_inputs(words, scales, 0), x0, acc)
    acc = tl.dot(_inputs(words, scales, 1), x1, acc)
    acc = tl.dot(_inputs(words, scales, 2), x2, acc)
    return tl.dot(_inputs(words, scales, 3), x3, acc)


@triton.jit
def multiply_fp4(
    rows, real, n, x_ptr, w_ptr, scale_ptr, K: tl.constexpr, N: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    """Rows of x with rows n of an expert's W (gated: and rows N + n): [M, N] float32, twice. w_ptr:
    of 32-bit words."""
    WORDS: tl.constexpr = BLOCK_K // 8
    GROUPS: tl.constexpr = BLOCK_K // 32
    lane, word, group = tl.arange(0, BLOCK_K), tl.arange(0, WORDS), tl.arange(0, GROUPS)
    known = (n < N)[:, None]
    x_rows = x_ptr + rows.to(tl.int64)[:, None] * K + lane[None, :]
    w_rows = w_ptr + n.to(tl.int64)[:, None] * (K // 8) + word[None, :]
    up_rows = w_rows + N * (K // 8)
    scale_rows = scale_ptr + n.to(tl.int64)[:, None] * (K // 32) + group[None, :]
    up_scale_rows = scale_rows + N * (K // 32)
    acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    up = acc
    # Exponents, which are too small to be copied ahead, are read a tile before they are needed.
    mask = known & (group < K // 32)[None, :]
    exponents = tl.load(scale_rows, mask=mask, other=0)
    up_exponents = tl.load(up_scale_rows, mask=mask, other=0) if GATED else exponents
    for k in range(0, K, BLOCK_K):
        x_mask, w_mask = real[:, None], known
        if K % BLOCK_K:
            x_mask = x_mask & (lane < K - k)[None, :]
            w_mask = w_mask & (word < (K - k) // 8)[None, :]
        x = tl.load(x_rows + k, mask=x_mask, other=0.0)
        # Inputs 4j + i are x_i[j]: first by the lower bit of i, then by the upper.
        even, odd = tl.split(tl.reshape(x, (BLOCK_M, BLOCK_K // 4, 2, 2)))
        x0, x2 = tl.split(even)
        x1, x3 = tl.split(odd)
        x0, x1, x2, x3 = tl.trans(x0), tl.trans(x1), tl.trans(x2), tl.trans(x3)
        words = tl.load(w_rows + k // 8, mask=w_mask, other=0)
        acc = _tile_product(acc, x0, x1, x2, x3, words, exponents, BLOCK_N, GROUPS)
        following = k // 32 + GROUPS
        mask = known & (group < K // 32 - following)[None, :]
        exponents = tl.load(scale_rows + following, mask=mask, other=0)
        if GATED:
            words = tl.load(up_rows + k // 8, mask=w_mask, other=0)
            up = _tile_product(up, x0, x1, x2, x3, words, up_exponents, BLOCK_N, GROUPS)
            up_exponents = tl.load(up_scale_rows + following, mask=mask, other=0)
    return tl.trans(acc), tl.trans(up)
