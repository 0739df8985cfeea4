# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Activations in two codes of fp8 each: the nearest, and the nearest to what it lacks.

Together they are as near as bfloat16, with the tensor core's rate for fp8 and without a loss to
speak of. A token has one scale. Codes lie by groups of 32 inputs: the codes of a group's even
inputs, those of its odd ones, and then what both lack, as fp4_codes.py multiplies them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from atom.model_ops.backends.triton_ops.launch import next_power_of_2, warps_for
from atom.model_ops.values import LinearWeight, WeightFormat

_PAIR = 64  # inputs of two groups, whose exponents are read at once
_DTYPE = torch.float8_e4m3fn
_LIMIT = tl.constexpr(448.0)


@triton.jit
def _twin_codes_kernel(x_ptr, codes_ptr, scales_ptr, K: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, BLOCK)
    group, within = place // 32, place % 32
    k = group * 32 + within % 16 * 2 + within // 16
    x = tl.load(x_ptr + row * K + k, mask=place < K, other=0.0).to(tl.float32)
    largest = tl.max(tl.abs(x), axis=0)
    scale = tl.where(largest > 0, largest / _LIMIT, 1.0)
    x = tl.minimum(tl.maximum(x / scale, -_LIMIT), _LIMIT)
    codes = x.to(codes_ptr.dtype.element_ty)
    lacking = (x - codes.to(tl.float32)).to(codes_ptr.dtype.element_ty)
    codes_at = codes_ptr + row * (2 * K) + group * 64 + within
    tl.store(codes_at, codes, mask=place < K)
    tl.store(codes_at + 32, lacking, mask=place < K)
    tl.store(scales_ptr + row, scale)


def twin_codes(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x [T, in] contiguous, of whole groups → e4m3 [T, 2 · in], scales [T] float32."""
    tokens, inner = x.shape
    codes = torch.empty((tokens, 2 * inner), dtype=_DTYPE, device=x.device)
    scales = torch.empty(tokens, dtype=torch.float32, device=x.device)
    block = next_power_of_2(inner)
    _twin_codes_kernel[(tokens,)](
        x, codes, scales, K=inner, BLOCK=block, num_warps=warps_for(block)
    )
    return codes, scales


def multiplies_codes(w: LinearWeight) -> bool:
    """Whether w is multiplied with twin codes: MXFP4 for bfloat16, by a tensor core that multiplies
    e4m3. AMD's gfx942 has another type of fp8, where a code of minus zero is no number."""
    if w.format is not WeightFormat.MXFP4 or w.inputs % _PAIR or torch.version.hip:
        return False
    assert w.scales is not None
    device = w.data.device
    capable = device.type != "cuda" or torch.cuda.get_device_capability(device) >= (8, 9)
    return w.scales.dtype is torch.bfloat16 and capable
