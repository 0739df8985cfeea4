# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Dequantise matrices for products of many tokens.

A product of few tokens dequantises every tile that it reads; here this is done once. The matrix is
then written and read again, a small cost for thousands of tokens, and multiplied like plain ones.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from atom.model_ops.backends.triton_ops.gemm.packed_bytes import (
    by_input,
    group_values,
    scale_values,
    unpacked,
    unpacked_by_index,
)
from atom.model_ops.backends.triton_ops.gemm.packed_bytes_gemm import orders
from atom.model_ops.backends.triton_ops.mxfp4_layout import RUN_BYTES, RUN_EXPONENTS, places
from atom.model_ops.values import EIGHT_BITS, FP4_FORMATS, LinearWeight, Scales, WeightFormat

_ROWS, _INPUTS = 4, 1024  # as many bytes in a row as memory gives at its full rate


@triton.jit
def _dequantise_4bit_kernel(
    w_ptr, scale_ptr, zero_ptr, index_ptr, out_ptr, rows, K: tl.constexpr, groups: tl.constexpr,
    GROUP: tl.constexpr, FP4: tl.constexpr, INTERLEAVED: tl.constexpr, ROWS: tl.constexpr,
    BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Dequantise rows of all matrices of a stack. GROUP: inputs that share one of a row's `groups`
    scales, a multiple of the tile's or a part of it; zero_ptr: None if every zero point is 8;
    index_ptr: the group of each input, None if groups are contiguous. INTERLEAVED: see
    mxfp4_layout.py."""
    GROUPS: tl.constexpr = (BLOCK_K + GROUP - 1) // GROUP
    PAIRS: tl.constexpr = BLOCK_K // 2
    # Rows of the whole stack as one: experts' matrices follow each other without a gap.
    n = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    k = tl.program_id(1) * BLOCK_K
    pair = k // 2 + tl.arange(0, PAIRS)
    known = (n < rows)[:, None]
    inside = known & (pair < K // 2)[None, :]
    w_at = w_ptr + places(n[:, None], pair[None, :], K // 2, RUN_BYTES, INTERLEAVED)
    codes = tl.load(w_at, mask=inside, other=0)
    dtype = out_ptr.dtype.element_ty
    # A tile holds whole groups, or is a part of one: a scale is read once for each.
    if index_ptr is None:
        group = k // GROUP + tl.arange(0, GROUPS)[None, :]
        if INTERLEAVED:
            scale_at = scale_ptr + places(n[:, None], group, groups, RUN_EXPONENTS, INTERLEAVED)
            stored = tl.load(scale_at, mask=known & (group < groups), other=0)
            zeros = tl.full([1, 1], 8, tl.int16)
        else:
            stored, zeros = group_values(
                scale_ptr, zero_ptr, n, groups, group, known & (group < groups)
            )
        scales = by_input(scale_values(stored, FP4), ROWS, GROUPS, PAIRS)
        zeros = by_input(zeros, ROWS, GROUPS, PAIRS)
        even, odd = unpacked(codes, scales, zeros, dtype, FP4)
    else:
        even, odd = unpacked_by_index(
            codes, scale_ptr, zero_ptr, index_ptr, n, groups, pair, inside, dtype
        )
    numbers = tl.reshape(tl.join(even, odd), (ROWS, BLOCK_K))
    lane = k + tl.arange(0, BLOCK_K)
    out_at = out_ptr + n[:, None] * K + lane[None, :]
    tl.store(out_at, numbers, mask=known & (lane < K)[None, :])


@triton.jit
def _dequantise_8bit_kernel(
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


def dequantise(w: LinearWeight, dtype: torch.dtype) -> LinearWeight:
    """Dequantise a matrix or stack to the plain one of this dtype; sorted inputs stay sorted."""
    scales = w.scales
    assert scales is not None
    if w.format in EIGHT_BITS:
        return _dequantise_8bit(w, scales, dtype)
    group, inputs = scales.block[1], w.inputs
    _, index = orders(scales)
    block_k = _INPUTS if _INPUTS % group == 0 else math.gcd(group, _INPUTS)
    rows = w.data.numel() // w.data.shape[-1]
    data = torch.empty((*w.data.shape[:-1], inputs), dtype=dtype, device=w.data.device)
    _dequantise_4bit_kernel[(triton.cdiv(rows, _ROWS), triton.cdiv(inputs, block_k))](
        w.data, scales.scale, scales.zero, index, data, rows,
        K=inputs, groups=scales.scale.shape[-1], GROUP=group,
        FP4=w.format in FP4_FORMATS, INTERLEAVED=w.format is WeightFormat.MXFP4_INTERLEAVED,
        ROWS=_ROWS, BLOCK_K=block_k,
    )  # fmt: skip
    return LinearWeight(data, w.bias)


def _dequantise_8bit(w: LinearWeight, scales: Scales, dtype: torch.dtype) -> LinearWeight:
    data = torch.empty(w.data.shape, dtype=dtype, device=w.data.device)
    tall, wide = scales.block
    matrices = w.data.numel() // (w.outputs * w.inputs)
    grid = (triton.cdiv(w.outputs, _ROWS), triton.cdiv(w.inputs, _INPUTS), matrices)
    _dequantise_8bit_kernel[grid](
        w.data, scales.scale, data, w.outputs, K=w.inputs, TALL=tall, WIDE=wide,
        ROWS=_ROWS, BLOCK_K=_INPUTS,
    )  # fmt: skip
    return LinearWeight(data, w.bias)
