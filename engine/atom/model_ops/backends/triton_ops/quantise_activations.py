# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Activations in eight bits with their scales, for products with 8-bit matrices.

fp8 has a scale for 128 neighbouring inputs of a token in our kernels, whatever the matrix' own
scales are: finer than formats require, and the same numbers as the product's kernel computes itself
for few tokens (w8a8_gemm.py). It has a scale per token if the library requires it (scaled_mm.py).
int8 has a scale per token, so that a whole product is one sum of integers.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from atom.model_ops.backends.triton_ops.launch import next_power_of_2, warps_for

# Inputs of a token that share a scale, and such groups of a program.
GROUP = 128
_GROUPS = 8
_INT8_MAX = 127.0


@triton.jit
def quantise_tile(x, LIMIT: tl.constexpr, dtype: tl.constexpr):
    """Map x [rows, n] float32 → codes of dtype, and each row's scale [rows]."""
    largest = tl.max(tl.abs(x), axis=1)
    # A row of zeros keeps scale 1: 0 / 0 would make NaN of every product with it.
    scale = tl.where(largest > 0, largest / LIMIT, 1.0)
    codes = x / scale[:, None]
    # Conversion to int8 truncates; to fp8 it rounds to nearest even, and beyond the largest it
    # would be NaN if the card does not saturate.
    if dtype == tl.int8:
        codes = tl.floor(codes + 0.5)
    else:
        codes = tl.minimum(tl.maximum(codes, -LIMIT), LIMIT)
    return codes.to(dtype), scale


@triton.jit(do_not_specialize=["row_stride", "group_stride"])
def _groups_kernel(
    x_ptr, codes_ptr, scales_ptr, K, row_stride, group_stride,
    GROUPS: tl.constexpr, GROUP: tl.constexpr, LIMIT: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    # Several groups a program: one alone is 128 numbers, fewer than a warp reads at once.
    k = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    x = tl.load(x_ptr + row * K + k, mask=k < K, other=0.0).to(tl.float32)
    codes, scale = quantise_tile(x, LIMIT, codes_ptr.dtype.element_ty)
    tl.store(codes_ptr + row * K + k, codes, mask=k < K)
    count = tl.cdiv(K, GROUP)
    # Strides are arguments: the library wants a group's scales side by side, our kernels a token's.
    at = scales_ptr + row * row_stride + group * group_stride
    tl.store(at, scale, mask=group < count)


@triton.jit
def _rows_kernel(x_ptr, codes_ptr, scales_ptr, K, BLOCK: tl.constexpr, LIMIT: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, BLOCK)[None, :]
    # A whole row in one tile, so its largest is known before anything is written.
    x = tl.load(x_ptr + row * K + k, mask=k < K, other=0.0).to(tl.float32)
    codes, scale = quantise_tile(x, LIMIT, codes_ptr.dtype.element_ty)
    tl.store(codes_ptr + row * K + k, codes, mask=k < K)
    # As a tile of one: quantise_tile gives a scale for each of its rows.
    tl.store(scales_ptr + row + tl.arange(0, 1), scale)


def fp8_limit(dtype: torch.dtype) -> float:
    """Return the largest number of an fp8 type."""
    return float(torch.finfo(dtype).max)


def quantise_groups(
    x: torch.Tensor,
    dtype: torch.dtype,
    group: int = GROUP,
    *,
    rows: int | None = None,
    tokens_first: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Map x [T, in] contiguous → fp8 [rows, in], scales [rows, ⌈in / group⌉] float32; rows: T or
    more, with arbitrary values after T. tokens_first: if false, a group's scales are contiguous."""
    tokens, inner = x.shape
    rows = rows or tokens
    groups = triton.cdiv(inner, group)
    codes = torch.empty((rows, inner), dtype=dtype, device=x.device)
    shape = (rows, groups) if tokens_first else (groups, rows)
    scales = torch.empty(shape, dtype=torch.float32, device=x.device)
    scales = scales if tokens_first else scales.t()
    _groups_kernel[(tokens, triton.cdiv(groups, _GROUPS))](
        x, codes, scales, inner, *scales.stride(),
        GROUPS=_GROUPS, GROUP=group, LIMIT=fp8_limit(dtype), num_warps=2,
    )  # fmt: skip
    return codes, scales


def quantise_rows(
    x: torch.Tensor, dtype: torch.dtype = torch.int8, rows: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Map x [T, in] contiguous → int8 or fp8 [rows, in], scales [rows, 1] float32; rows: T or more,
    with arbitrary values after T."""
    tokens, inner = x.shape
    codes = torch.empty((rows or tokens, inner), dtype=dtype, device=x.device)
    scales = torch.empty((rows or tokens, 1), dtype=torch.float32, device=x.device)
    block = next_power_of_2(inner)
    _rows_kernel[(tokens,)](
        x, codes, scales, inner, BLOCK=block,
        LIMIT=_INT8_MAX if dtype is torch.int8 else fp8_limit(dtype), num_warps=warps_for(block),
    )  # fmt: skip
    return codes, scales
