"""MXFP4 for AITER's kernels of four bits: tiles of bytes, exponents in the order of lanes.

Both are arranged once, when weights are prepared. A prepared matrix has torch's packed fp4 dtype,
by which kernels know it.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from atom.model_ops.backends.aiter_ops.library import Library
from atom.model_ops.values import LinearWeight, WeightFormat

# Two numbers a byte, which torch counts as one element.
FP4 = torch.float4_e2m1fn_x2
# Outputs, and inputs, that the tiles of a product consist of.
TILE = (32, 256)


def for_fp4_inputs(w: LinearWeight) -> bool:
    """Return whether a matrix as it was loaded is multiplied with inputs of four bits."""
    if w.format is not WeightFormat.MXFP4 or w.scales is None or not w.scales.fp4_inputs:
        return False
    return w.outputs % TILE[0] == 0 and w.inputs % TILE[1] == 0


def in_tiles(library: Library, w: LinearWeight) -> LinearWeight:
    """Arrange a matrix [out, in / 2], or a stack of them whose outputs are multiples of 256."""
    assert w.scales is not None
    data = library["shuffle_weight"](x=w.data.view(FP4), layout=(16, 16))
    exponents = library["e8m0_shuffle"](scale=w.scales.scale.flatten(0, -2))
    return replace(w, data=data, scales=replace(w.scales, scale=exponents))


def product(library: Library, x: torch.Tensor, w: LinearWeight) -> torch.Tensor:
    """Multiply x [T, in] → [T, out], x rounded to MXFP4, without the bias, which AITER's kernels
    add or not as their tables have it."""
    assert w.scales is not None
    codes, exponents = library["per_1x32_f4_quant_hip"](x=x, quant_dtype=FP4, shuffle=True)
    out: torch.Tensor = library["gemm_a4w4"](
        A=codes,
        B=w.data,
        A_scale=exponents.view(torch.float8_e8m0fnu),
        B_scale=w.scales.scale.view(torch.float8_e8m0fnu),
        dtype=x.dtype,
    )
    return out
