# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Convert 4-bit weights of int32 words to numbers: two at once, by their bits' meaning in a 16-bit
float.

A word of 4-bit codes has inputs 8w .. 8w + 7. One shift moves its nibbles i and i + 4 to the same
places of the word's two halves. So tile i has the inputs i and i + 4 of every word, and activations
are divided in the same way (`quarters`). e2m1 has sign, exponent and fraction at the places of
bfloat16's and float16's. An int4 code alone in a half is one of the dtype's smallest numbers, which
a tensor core multiplies like any other; if a scale is multiplied into it, it becomes the fraction
of a normal number.
"""

from __future__ import annotations

import triton
import triton.language as tl

# What products with bare codes lack: they are 2^-133 or 2^-24 of what they mean, and bfloat16's
# inputs are 2^60 times as large (packed_int32_inputs.py).
LACK_BF16, LACK_FP16 = tl.constexpr(2.0**73), tl.constexpr(2.0**24)


@triton.jit
def _halves(words, dtype: tl.constexpr):
    # Two 16-bit numbers a register: no conversion instruction, only a view.
    high = (words >> 16).to(tl.int16).to(dtype, bitcast=True)
    return words.to(tl.int16).to(dtype, bitcast=True), high


@triton.jit
def _in_turn(low, high):
    """Map [N, W], twice → [N, 2W]."""
    # One thread has low and high halves alternately, so this needs no exchange.
    N: tl.constexpr = low.shape[0]
    WORDS: tl.constexpr = low.shape[1]
    return tl.reshape(tl.join(low, high), (N, 2 * WORDS))


@triton.jit
def quarters(x, ROWS: tl.constexpr, BLOCK_K: tl.constexpr):
    """Map x [ROWS, BLOCK_K] → four tiles [BLOCK_K / 4, ROWS], the i-th of inputs 4j + i."""
    # First by the lower bit of i, then by the upper.
    even, odd = tl.split(tl.reshape(x, (ROWS, BLOCK_K // 4, 2, 2)))
    x0, x2 = tl.split(even)
    x1, x3 = tl.split(odd)
    return tl.trans(x0), tl.trans(x1), tl.trans(x2), tl.trans(x3)


@triton.jit
def mxfp4_to_bf16(words, scales, NIBBLE: tl.constexpr):
    """Map words int32 [N, W], scales bfloat16 [N, W], 2^126 times as large → the inputs NIBBLE and
    NIBBLE + 4 of each word, bfloat16 [N, 2W]. The codes alone are 2^-126 of their values, ½ and 0
    included."""
    sign, size = mxfp4_shifted(words, NIBBLE)
    bits = (sign & -2147450880) | (size & 0x01C001C0)  # 0x80008000
    # Scaled in bfloat16: a power of two, so the product is exact.
    low, high = _halves(bits, tl.bfloat16)
    high = high * scales
    low = low * scales
    return _in_turn(low, high)


@triton.jit
def mxfp4_shifted(words, NIBBLE: tl.constexpr):
    """Return words int32, twice: with the sign of the inputs NIBBLE and NIBBLE + 4 at bfloat16's
    place in each half, and with their size there."""
    # One shift serves both halves: nibble i lands where the low half has exponent and fraction,
    # nibble i + 4 where the high half has.
    size = words << (6 - 4 * NIBBLE) if NIBBLE < 2 else words >> (4 * NIBBLE - 6)
    return words << (12 - 4 * NIBBLE), size


@triton.jit
def mxfp4_scales_to_bf16(exponents):
    """Exponents uint8 → 2^126 × scales, bfloat16."""
    # A bfloat16 of exponent field e is 2^(e - 127): stored + 126 makes 2^126 times the scale.
    return ((exponents.to(tl.int16) + 126) << 7).to(tl.bfloat16, bitcast=True)


@triton.jit
def mxfp4_to_fp16(words, scales, NIBBLE: tl.constexpr):
    """Convert as `mxfp4_to_bf16` does to float16, by scales in float32 [N, W], 2^14 times as large
    (packed_bytes.py)."""
    size = words << (9 - 4 * NIBBLE) if NIBBLE < 3 else words >> (4 * NIBBLE - 9)
    bits = ((words << (12 - 4 * NIBBLE)) & -2147450880) | (size & 0x0E000E00)
    low, high = _halves(bits, tl.float16)
    # float16 has too few exponents for MXFP4's scales, so these are multiplied in float32.
    low, high = low.to(tl.float32) * scales, high.to(tl.float32) * scales
    return _in_turn(low.to(tl.float16), high.to(tl.float16))


@triton.jit
def int4_tile(words, scales, dtype: tl.constexpr):
    """Map words int32 [N, W] → their inputs nibble by nibble, [N, 8W] of dtype, bfloat16 or
    float16. Without scales: codes as they are, which are the smallest of the dtype's numbers; with
    scales float32 [N, W]: codes less 8, times the scales."""
    WORDS: tl.constexpr = words.shape[1]
    # Joined so that nibbles come in the order in which packed_int32_inputs.py writes x.
    even = tl.join(_pairs(words, scales, 0, dtype), _pairs(words, scales, 2, dtype))
    odd = tl.join(_pairs(words, scales, 1, dtype), _pairs(words, scales, 3, dtype))
    nibbles = tl.permute(tl.join(even, odd), (0, 2, 3, 1))  # [N, 2, 2, 2W]
    return tl.reshape(nibbles, (words.shape[0], 8 * WORDS))


@triton.jit
def _pairs(words, scales, NIBBLE: tl.constexpr, dtype: tl.constexpr):
    if scales is None:
        low, high = _halves(_unscaled_int4(words, NIBBLE, dtype), dtype)
    else:
        MIDDLE: tl.constexpr = 136.0 if dtype == tl.bfloat16 else 1032.0
        low, high = _halves(int4_bits(words, NIBBLE, dtype), dtype)
        low = ((low - MIDDLE).to(tl.float32) * scales).to(dtype)
        high = ((high - MIDDLE).to(tl.float32) * scales).to(dtype)
    return _in_turn(low, high)


@triton.jit
def _unscaled_int4(words, NIBBLE: tl.constexpr, dtype: tl.constexpr):
    """Map words int32 → a code alone in each half. The lowest eight bits of a bfloat16 count
    2^-133, subnormal or not, so one of two nibbles keeps its place: it means 16 times as much, and
    its inputs are divided accordingly (packed_int32_inputs.py)."""
    if dtype == tl.bfloat16:
        MASK: tl.constexpr = 0x00F000F0 if NIBBLE % 2 else 0x000F000F
        return (words >> (NIBBLE // 2 * 8)) & MASK
    else:
        return (words >> (4 * NIBBLE)) & 0x000F000F


@triton.jit
def int4_bits(words, NIBBLE: tl.constexpr, dtype: tl.constexpr):
    """Map words int32 → the inputs NIBBLE and NIBBLE + 4 of each in its lower and its upper half,
    128 + code in bfloat16 or 1024 + code in float16: codes are their last bits."""
    # A float whose last four bits are worth 1 each: 128 in bfloat16 (7 bits of fraction), 1,024 in
    # float16 (10).
    WHOLE: tl.constexpr = 0x4300 if dtype == tl.bfloat16 else 0x6400
    return ((words >> (4 * NIBBLE)) & 0x000F000F) | (WHOLE * 0x10001)
