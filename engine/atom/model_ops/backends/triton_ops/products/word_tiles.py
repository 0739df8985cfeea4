# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Codes of 32-bit words as numbers: two at once, by what their bits mean in bfloat16."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def two_numbers(sign, size, scales, SIZE_BITS: tl.constexpr):
    """Words int32 [N, W] whose halves have a code's sign where `sign` has a half's highest bit, and
    its exponent and fraction where `size` has SIZE_BITS; scales bfloat16 [N, W] or None → the lower
    half's number and the upper's of each word, bfloat16 [N, 2W]."""
    bits = (sign & -2147450880) | (size & SIZE_BITS)  # 0x80008000
    low = bits.to(tl.int16).to(tl.bfloat16, bitcast=True)
    high = (bits >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True)
    if scales is not None:
        low, high = low * scales, high * scales
    N: tl.constexpr = bits.shape[0]
    WORDS: tl.constexpr = bits.shape[1]
    return tl.reshape(tl.join(low, high), (N, 2 * WORDS))
