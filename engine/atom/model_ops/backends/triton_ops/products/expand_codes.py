# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Matrices of codes as plain ones, for products of many tokens.

What a product of few tokens does with every tile it reads is done once here; the matrix is then
written and read again, which thousands of tokens do not notice, and multiplied as plain ones are.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from atom.model_ops.backends.triton_ops.products.packed_tiles import (
    by_input,
    in_numbers,
    unpacked,
    zero_points,
)
from atom.model_ops.values import EIGHT_BITS, LinearWeight, Scales, WeightFormat

_ROWS, _INPUTS = 32, 128


@triton.jit
def _numbers_kernel(
    w_ptr, scale_ptr, zero_ptr, out_ptr, rows, K: tl.constexpr,
    GROUP: tl.constexpr, FP4: tl.constexpr, ROWS: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Rows of all matrices of a stack. GROUP: inputs that share a scale, a multiple of the tile's
    or a part of it; zero_ptr: None where every zero point is 8."""
    GROUPS: tl.constexpr = (BLOCK_K + GROUP - 1) // GROUP
    PAIRS: tl.constexpr = BLOCK_K // 2
    groups: tl.constexpr = (K + GROUP - 1) // GROUP
    n = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    k = tl.program_id(1) * BLOCK_K
    pair = k // 2 + tl.arange(0, PAIRS)
    group = k // GROUP + tl.arange(0, GROUPS)
    known, in_group = (n < rows)[:, None], (group < groups)[None, :]
    inside = known & (pair < K // 2)[None, :]
    codes = tl.load(w_ptr + n[:, None] * (K // 2) + pair[None, :], mask=inside, other=0)
    scale_at = scale_ptr + n[:, None] * groups + group[None, :]
    scales = in_numbers(tl.load(scale_at, mask=known & in_group, other=0), FP4)
    scales = by_input(scales, ROWS, GROUPS, PAIRS)
    zeros = tl.full([1, 1], 8, tl.int16)
    if zero_ptr is not None:
        zero_at = zero_ptr + (n // 2)[:, None] * groups + group[None, :]
        pairs = tl.load(zero_at, mask=known & in_group, other=0)
        zeros = by_input(zero_points(pairs, n), ROWS, GROUPS, PAIRS)
    even, odd = unpacked(codes, scales, zeros, out_ptr.dtype.element_ty, FP4)
    numbers = tl.reshape(tl.join(even, odd), (ROWS, BLOCK_K))
    lane = k + tl.arange(0, BLOCK_K)
    out_at = out_ptr + n[:, None] * K + lane[None, :]
    tl.store(out_at, numbers, mask=known & (lane < K)[None, :])


@triton.jit
def _eight_bits_kernel(
    w_ptr, scale_ptr, out_ptr, height, K: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Rows of one matrix of the stack, of `height` rows. TALL, WIDE: outputs and inputs that share
    a scale."""
    columns: tl.constexpr = (K + WIDE - 1) // WIDE
    matrix = tl.program_id(2).to(tl.int64)
    n = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    k = tl.program_id(1) * BLOCK_K + tl.arange(0, BLOCK_K)
    inside = (n < height)[:, None] & (k < K)[None, :]
    at = (matrix * height + n)[:, None] * K + k[None, :]
    row = matrix * ((height + TALL - 1) // TALL) + n // TALL
    scales = tl.load(scale_ptr + row[:, None] * columns + k[None, :] // WIDE, mask=inside, other=0)
    numbers = tl.load(w_ptr + at, mask=inside, other=0.0).to(tl.float32) * scales
    tl.store(out_ptr + at, numbers.to(out_ptr.dtype.element_ty), mask=inside)


def expand_codes(w: LinearWeight, dtype: torch.dtype) -> LinearWeight:
    """A matrix or stack of codes → the plain one of this dtype."""
    scales = w.scales
    assert scales is not None
    if w.format in EIGHT_BITS:
        return _of_eight_bits(w, scales, dtype)
    group, inputs = scales.block[1], w.inputs
    block_k = _INPUTS if _INPUTS % group == 0 else math.gcd(group, _INPUTS)
    rows = w.data.numel() // w.data.shape[-1]
    data = torch.empty((*w.data.shape[:-1], inputs), dtype=dtype, device=w.data.device)
    _numbers_kernel[(triton.cdiv(rows, _ROWS), triton.cdiv(inputs, block_k))](
        w.data, scales.scale, scales.zero, data, rows, K=inputs, GROUP=group,
        FP4=w.format is WeightFormat.MXFP4, ROWS=_ROWS, BLOCK_K=block_k,
    )  # fmt: skip
    return LinearWeight(data, w.bias)


def _of_eight_bits(w: LinearWeight, scales: Scales, dtype: torch.dtype) -> LinearWeight:
    data = torch.empty(w.data.shape, dtype=dtype, device=w.data.device)
    tall, wide = scales.block
    matrices = w.data.numel() // (w.outputs * w.inputs)
    grid = (triton.cdiv(w.outputs, _ROWS), triton.cdiv(w.inputs, _INPUTS), matrices)
    _eight_bits_kernel[grid](
        w.data, scales.scale, data, w.outputs, K=w.inputs, TALL=tall, WIDE=wide,
        ROWS=_ROWS, BLOCK_K=_INPUTS,
    )  # fmt: skip
    return LinearWeight(data, w.bias)
