# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""The product of an expert's MXFP4 matrix with tokens in two codes of fp8 each (twin_codes.py).

e2m1 has sign, exponent and fraction where e4m3 has them, so four codes at once become numbers of
the tensor core by shifts and masks alone: nothing is multiplied into a number. A group's sum is
scaled and added in float32; what the tensor core adds up at once is one group, with tokens' codes
and then with what they lack. Weights are its tall side and come from registers.
"""

from __future__ import annotations

import triton
import triton.language as tl

from atom.model_ops.backends.triton_ops.experts.gates_and_ups import as_rows, of_rows

# What e2m1's bits lack where e4m3 has its own.
_REST = tl.constexpr(64.0)


@triton.jit
def _bytes(words, dtype: tl.constexpr):
    """words int32 [N, W] → of dtype, e4m3, [N, 4W]."""
    even = tl.join(words.to(tl.int8), (words >> 16).to(tl.int8))
    odd = tl.join((words >> 8).to(tl.int8), (words >> 24).to(tl.int8))
    codes = tl.reshape(tl.join(even, odd), (words.shape[0], 4 * words.shape[1]))
    return codes.to(dtype, bitcast=True)


@triton.jit
def _side_by_side(left, right):
    """[N, W], twice → [N, 2W]."""
    joined = tl.permute(tl.join(left, right), (0, 2, 1))
    return tl.reshape(joined, (left.shape[0], 2 * left.shape[1]))


@triton.jit
def _numbers(words, dtype: tl.constexpr):
    """words int32 [N, 4] of a group → e4m3 [N, 64], 2^-6 of what they mean: its even inputs and
    its odd ones, and again."""
    low = ((words << 4) & -2139062144) | ((words << 2) & 0x1C1C1C1C)  # 0x80808080
    high = (words & -2139062144) | ((words >> 2) & 0x1C1C1C1C)
    group = _side_by_side(_bytes(low, dtype), _bytes(high, dtype))
    return _side_by_side(group, group)


@triton.jit
def _by_group(words):
    """[N, 16] → [N, 4], four times."""
    N: tl.constexpr = words.shape[0]
    # First by the lower bit of the group, then by the upper.
    ordered = tl.permute(tl.reshape(words, (N, 4, 4)), (0, 2, 1))
    even, odd = tl.split(tl.reshape(ordered, (N, 4, 2, 2)))
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return first, second, third, fourth


@triton.jit
def _first_scale(exponents):
    return ((exponents << 23) & 0x7F800000).to(tl.float32, bitcast=True)


@triton.jit
def _second_scale(exponents):
    return ((exponents << 15) & 0x7F800000).to(tl.float32, bitcast=True)


@triton.jit
def _tile_product(acc, x0, x1, x2, x3, words, exponents, further):
    """x0 to x3: codes [M, 64] of a group's inputs; exponents, further: two groups' each, [N]."""
    words0, words1, words2, words3 = _by_group(words)
    acc += tl.dot(_numbers(words0, x0.dtype), tl.trans(x0)) * _first_scale(exponents)[:, None]
    acc += tl.dot(_numbers(words1, x1.dtype), tl.trans(x1)) * _second_scale(exponents)[:, None]
    acc += tl.dot(_numbers(words2, x2.dtype), tl.trans(x2)) * _first_scale(further)[:, None]
    acc += tl.dot(_numbers(words3, x3.dtype), tl.trans(x3)) * _second_scale(further)[:, None]
    return acc


@triton.jit
def _exponents(rows, pair, PAIRS: tl.constexpr):
    """Beyond the last pair it is read again; its words are zeros there."""
    return tl.load(rows + tl.minimum(pair, PAIRS - 1)).to(tl.int32)


@triton.jit
def multiply_fp4_codes(
    rows, real, n, x_ptr, x_scale_ptr, w_ptr, scale_ptr, K: tl.constexpr, N: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    """Rows of x with rows n of an expert's W (gated: and rows N + n): [M, N] float32, twice. x_ptr:
    [.., 2K] twin codes, x_scale_ptr: [..]; w_ptr: of 32-bit words, scale_ptr: of two exponents."""
    tl.static_assert(BLOCK_K == 128 and K % 64 == 0)  # of groups of 32, two of which are a pair
    PAIRS: tl.constexpr = K // 64
    lane, word = tl.arange(0, 64), tl.arange(0, 16)
    n = tl.minimum(n, N - 1)  # beyond the last row it is read again, which needs no mask
    if GATED:
        n = as_rows(n, N)
    x_rows = x_ptr + rows.to(tl.int64)[:, None] * (2 * K) + lane[None, :]
    w_rows = w_ptr + n.to(tl.int64)[:, None] * (K // 8) + word[None, :]
    scale_rows = scale_ptr + n.to(tl.int64) * PAIRS
    acc = tl.zeros([n.shape[0], BLOCK_M], tl.float32)
    # Exponents, which are too small to be copied ahead, are read a tile before they are needed.
    exponents, further = _exponents(scale_rows, 0, PAIRS), _exponents(scale_rows, 1, PAIRS)
    for k in range(0, K, BLOCK_K):
        pair = k // 64
        x_mask = real[:, None]
        further_mask = x_mask & (lane < (PAIRS - 1 - pair) * 64)[None, :]
        x0 = tl.load(x_rows + 2 * k, mask=x_mask, other=0.0)
        x1 = tl.load(x_rows + (2 * k + 64), mask=x_mask, other=0.0)
        x2 = tl.load(x_rows + (2 * k + 128), mask=further_mask, other=0.0)
        x3 = tl.load(x_rows + (2 * k + 192), mask=further_mask, other=0.0)
        inside = (word < (K - k) // 8)[None, :]
        words = tl.load(w_rows + k // 8, mask=inside, other=0)
        acc = _tile_product(acc, x0, x1, x2, x3, words, exponents, further)
        exponents = _exponents(scale_rows, pair + 2, PAIRS)
        further = _exponents(scale_rows, pair + 3, PAIRS)
    scales = (tl.load(x_scale_ptr + rows, mask=real, other=0.0) * _REST)[:, None]
    if GATED:
        gate, up = of_rows(acc)
        return tl.trans(gate) * scales, tl.trans(up) * scales
    else:
        result = tl.trans(acc) * scales
        return result, result
