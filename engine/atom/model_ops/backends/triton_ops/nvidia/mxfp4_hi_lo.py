# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""The product of an expert's MXFP4 matrix with tokens in two fp8 terms each (fp8_hi_lo.py).

e2m1 has sign, exponent and fraction at e4m3's places, so four codes at once become the tensor
core's numbers by shifts and masks alone, without multiplications. A group's sum is scaled and added
in float32; the tensor core sums one group at once, with tokens' codes and then with the
remainders'. Weights, interleaved by eight rows, are its tall side and come from registers.
"""

from __future__ import annotations

import triton
import triton.language as tl

from atom.model_ops.backends.triton_ops.mxfp4_layout import RUN_WORDS, places
from atom.model_ops.backends.triton_ops.w13_tiles import as_rows, of_rows

# What e2m1's bits lack where e4m3 has its own.
_REST = tl.constexpr(64.0)


@triton.jit
def _bytes(words, dtype: tl.constexpr):
    """Map words int32 [N, W] → of dtype, e4m3, [N, 4W]."""
    # Bytes of a word in their order; joins of a thread's values.
    even = tl.join(words.to(tl.int8), (words >> 16).to(tl.int8))
    odd = tl.join((words >> 8).to(tl.int8), (words >> 24).to(tl.int8))
    codes = tl.reshape(tl.join(even, odd), (words.shape[0], 4 * words.shape[1]))
    return codes.to(dtype, bitcast=True)


@triton.jit
def _side_by_side(left, right):
    """Map [N, W], twice → [N, 2W]."""
    joined = tl.permute(tl.join(left, right), (0, 2, 1))
    return tl.reshape(joined, (left.shape[0], 2 * left.shape[1]))


@triton.jit
def _numbers(words, dtype: tl.constexpr):
    """Map words int32 [N, 4] of a group → e4m3 [N, 64], 2^-6 of their values: its even inputs and
    its odd ones, and again."""
    # Sign to bit 7, two bits of exponent and one of fraction to bits 4 to 2: e4m3 reads that as
    # 2^-6 of the number, four codes an instruction.
    low = ((words << 4) & -2139062144) | ((words << 2) & 0x1C1C1C1C)  # 0x80808080
    high = (words & -2139062144) | ((words >> 2) & 0x1C1C1C1C)
    group = _side_by_side(_bytes(low, dtype), _bytes(high, dtype))
    # Twice: x's hi and lo terms meet the same weights in one dot.
    return _side_by_side(group, group)


@triton.jit
def _by_group(words):
    """Map [N, 16] → [N, 4], four times."""
    N: tl.constexpr = words.shape[0]
    # First by the lower bit of the group, then by the upper.
    ordered = tl.permute(tl.reshape(words, (N, 4, 4)), (0, 2, 1))
    even, odd = tl.split(tl.reshape(ordered, (N, 4, 2, 2)))
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return first, second, third, fourth


@triton.jit
def _of_pair(words):
    """Map [N, 8] → [N, 4], twice."""
    return tl.split(tl.permute(tl.reshape(words, (words.shape[0], 2, 4)), (0, 2, 1)))


@triton.jit
def _scale(exponents, NUMBER: tl.constexpr):
    """Return the scale of group NUMBER of the four whose exponents int32 [N] hold."""
    # Four exponents a word: shifted to float32's exponent, one instruction and no table.
    FURTHER: tl.constexpr = 23 - 8 * NUMBER
    bits = exponents << FURTHER if FURTHER > 0 else exponents >> -FURTHER
    return (bits & 0x7F800000).to(tl.float32, bitcast=True)


@triton.jit
def _group_sum(acc, words, x, scale):
    """words int32 [N, 4] and codes x [M, 64] of a group, scale [N]."""
    # The dot of one group starts at 0: scales are exact powers of two, and sums over groups are
    # float32.
    return acc + tl.dot(_numbers(words, x.dtype), tl.trans(x)) * scale[:, None]


@triton.jit
def multiply_mxfp4_hi_lo(
    rows, real, n, x_ptr, x_scale_ptr, w_ptr, scale_ptr, K: tl.constexpr, N: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    """Rows of x with rows n of an expert's W (gated: and rows N + n): [M, N] float32, twice. x_ptr:
    [.., 2K] of two terms, x_scale_ptr: [..]; W interleaved, w_ptr: of 32-bit words, scale_ptr: of
    four exponents."""
    tl.static_assert(BLOCK_K == 128 and K % 64 == 0)
    TURNS: tl.constexpr = (K + 255) // 256  # of eight exponents, two words
    WHOLE: tl.constexpr = K // BLOCK_K * BLOCK_K
    lane = tl.arange(0, 64)
    known = real[:, None]
    n = tl.minimum(n, N - 1)  # beyond the last row it is read again, which needs no mask
    if GATED:
        n = as_rows(n, N)
    x_rows = x_ptr + rows.to(tl.int64)[:, None] * (2 * K) + lane[None, :]
    word = tl.arange(0, 16)[None, :]
    w_rows = w_ptr + places(n[:, None], word, K // 8, RUN_WORDS, True)
    scale_rows = scale_ptr + places(n, 0, 2 * TURNS, 2, True)
    acc = tl.zeros([n.shape[0], BLOCK_M], tl.float32)
    if K > WHOLE:  # half a tile remains, on its way during all others
        word = WHOLE // 8 + tl.arange(0, 8)[None, :]
        last = tl.load(w_ptr + places(n[:, None], word, K // 8, RUN_WORDS, True))
        last0 = tl.load(x_rows + 2 * WHOLE, mask=known, other=0.0)
        last1 = tl.load(x_rows + (2 * WHOLE + 64), mask=known, other=0.0)
        last_exponents = tl.load(scale_rows + (WHOLE // 256 * 16 + WHOLE // BLOCK_K % 2))
    # Exponents, which are too small to be copied ahead, are read a tile before they are needed, and
    # left as loaded: their conversion waits for them.
    exponents = tl.load(scale_rows)
    for k in range(0, WHOLE, BLOCK_K):
        x0 = tl.load(x_rows + 2 * k, mask=known, other=0.0)
        x1 = tl.load(x_rows + (2 * k + 64), mask=known, other=0.0)
        x2 = tl.load(x_rows + (2 * k + 128), mask=known, other=0.0)
        x3 = tl.load(x_rows + (2 * k + 192), mask=known, other=0.0)
        # By group in registers: a run of 16 words is 128 inputs of a row, read as one piece.
        words0, words1, words2, words3 = _by_group(tl.load(w_rows + k))
        acc = _group_sum(acc, words0, x0, _scale(exponents, 0))
        acc = _group_sum(acc, words1, x1, _scale(exponents, 1))
        acc = _group_sum(acc, words2, x2, _scale(exponents, 2))
        acc = _group_sum(acc, words3, x3, _scale(exponents, 3))
        following = k // BLOCK_K + 1
        if K % 256 == 0:  # there is no padding after the last
            following = tl.minimum(following, 2 * TURNS - 1)
        exponents = tl.load(scale_rows + (following // 2 * 16 + following % 2))
    if K > WHOLE:
        words0, words1 = _of_pair(last)
        acc = _group_sum(acc, words0, last0, _scale(last_exponents, 0))
        acc = _group_sum(acc, words1, last1, _scale(last_exponents, 1))
    scales = (tl.load(x_scale_ptr + rows, mask=real, other=0.0) * _REST)[:, None]
    if GATED:
        gate, up = of_rows(acc)
        return tl.trans(gate) * scales, tl.trans(up) * scales
    else:
        result = tl.trans(acc) * scales
        return result, result
