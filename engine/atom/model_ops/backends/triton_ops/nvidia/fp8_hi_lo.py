# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Activations in two fp8 terms each: the nearest number, and the nearest to the remainder.

Together they are as precise as bfloat16, at the tensor core's rate for fp8 and without a notable
loss. A token has one scale. Codes are stored by groups of 32 inputs: the codes of a group's even
inputs, those of its odd ones, and then those of the remainders, as mxfp4_hi_lo.py multiplies them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from atom.model_ops.backends.triton_ops.launch import next_power_of_2, warps_for
from atom.model_ops.quantised.mxfp4_interleaved import can_interleave
from atom.model_ops.values import LinearWeight
from atom.utils.device import native_fp8

_DTYPE = torch.float8_e4m3fn
_LIMIT = tl.constexpr(448.0)


@triton.jit
def split_hi_lo(x, dtype: tl.constexpr):
    """Map x float32, within dtype's range → its code, and the code of the remainder."""
    # To four bits, as e4m3 has, by the bits of x: ptxas of CUDA 12.8 reads a wrong register where
    # codes are made numbers again in the program that made them.
    nearest = ((x.to(tl.int32, bitcast=True) + 0x80000) & -0x100000).to(tl.float32, bitcast=True)
    # lo = x - hi is exact in float32, and at most half of hi's last bit: e4m3 holds it with four
    # more bits.
    return nearest.to(dtype), (x - nearest).to(dtype)


@triton.jit
def hi_lo_input(number):
    """Return the input of a token's code `number`: within a group the even inputs come first."""
    # Even inputs of a group, then odd ones: the order in which mxfp4_hi_lo.py gets weights from low
    # and high nibbles.
    return number // 32 * 32 + number % 16 * 2 + number % 32 // 16


@triton.jit
def hi_lo_place(number):
    """Return the place of code `number`; its remainder's code is 32 further."""
    # hi of 32 inputs, then lo of them: one dot of depth 64 for a group of MXFP4.
    return number // 32 * 64 + number % 32


@triton.jit
def write_hi_lo(x_ptr, codes_ptr, scales_ptr, row, K: tl.constexpr, BLOCK: tl.constexpr):
    # Of neighbouring codes the inputs: reading apart costs less than writing.
    number = tl.arange(0, BLOCK)
    inside = number < K
    x = tl.load(x_ptr + row * K + hi_lo_input(number), mask=inside, other=0.0).to(tl.float32)
    largest = tl.max(tl.abs(x), axis=0)
    # One scale a token, so that it leaves the product.
    scale = tl.where(largest > 0, largest / _LIMIT, 1.0)
    x = tl.minimum(tl.maximum(x / scale, -_LIMIT), _LIMIT)
    code, lacking = split_hi_lo(x, codes_ptr.dtype.element_ty)
    codes_at = codes_ptr + row * (2 * K) + hi_lo_place(number)
    tl.store(codes_at, code, mask=inside)
    tl.store(codes_at + 32, lacking, mask=inside)
    tl.store(scales_ptr + row, scale)


@triton.jit
def _split_hi_lo_kernel(x_ptr, codes_ptr, scales_ptr, K: tl.constexpr, BLOCK: tl.constexpr):
    write_hi_lo(x_ptr, codes_ptr, scales_ptr, tl.program_id(0).to(tl.int64), K, BLOCK)


def empty_hi_lo(tokens: int, inner: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Allocate codes e4m3 [T, 2 · in] and scales [T] float32."""
    codes = torch.empty((tokens, 2 * inner), dtype=_DTYPE, device=device)
    return codes, torch.empty(tokens, dtype=torch.float32, device=device)


def split_activations(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Map x [T, in] contiguous, of whole groups → e4m3 [T, 2 · in], scales [T] float32."""
    tokens, inner = x.shape
    codes, scales = empty_hi_lo(tokens, inner, x.device)
    block = next_power_of_2(inner)
    _split_hi_lo_kernel[(tokens,)](
        x, codes, scales, K=inner, BLOCK=block, num_warps=warps_for(block)
    )
    return codes, scales


def takes_hi_lo(w: LinearWeight) -> bool:
    """Return whether w, as loaded, is to be multiplied with hi/lo terms: MXFP4 for bfloat16, by a
    tensor core that multiplies e4m3. AMD's gfx942 has another type of fp8, in which the code of
    minus zero is NaN."""
    if not can_interleave(w) or torch.version.hip:
        return False
    assert w.scales is not None
    return w.scales.dtype is torch.bfloat16 and native_fp8(w.data.device) is _DTYPE
