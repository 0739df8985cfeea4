"""Convert matrices of formats that no kernel here multiplies to fp8 with a scale per output.

An output's scale is the checkpoint's own float32 scale times the power of two by which its largest
number just fits e4m3. So no number is divided by anything but a power of two, and its error is
that of one rounding to e4m3:

- MXFP8 and MXFP6: none, since their numbers have no more bits than e4m3.
- NVFP4: e2m1 times e4m3 has at most six significant bits, of which e4m3 keeps four. Numbers of the
  codes 0.5, 1, 2 and 4 are exact; those of 1.5, 3 and 6 are off by at most 1/21.
- In all of them numbers below 2^-6 of an output's scale (a 14,336th of its largest number, or
  less) are off by at most 2^-10 of it, since e4m3 has no smaller exponents.

Pure functions on tensors of any device; they know no checkpoint.
"""

from __future__ import annotations

import torch

from atom.model_ops.quantised.codes import (
    FP8_MAX,
    exponent_scales,
    fp4_values,
    fp6_values,
    unpack_fours,
    unpack_pairs,
)
from atom.sizing.quantization import Source


def group_scales(source: Source, scale: torch.Tensor) -> torch.Tensor:
    """Convert the scales of groups to float32: e4m3 of NVFP4, e8m0 (or uint8) of the others."""
    if source is Source.NVFP4:
        return scale.float()
    return exponent_scales(scale.view(torch.uint8))


def numbers(source: Source, data: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Return the numbers of rows, without the scale of the matrix, exactly. data: uint8
    [out, in / 2] of NVFP4 and [out, 3 · in / 4] of MXFP6, e4m3 [out, in] of MXFP8; scale: float32
    [out, groups] → float32 [out, in]."""
    match source:
        case Source.NVFP4:
            values = fp4_values(unpack_pairs(data))
        case Source.MXFP6:
            values = fp6_values(unpack_fours(data))
        case Source.MXFP8:
            values = data.float()
    return values.unflatten(1, (-1, source.group)).mul_(scale[:, :, None]).flatten(1)


def to_fp8_rows(values: torch.Tensor, factor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Round values × factor, float32 [out, in] and [], to e4m3 [out, in] with scales float32
    [out, 1]."""
    part, exponent = torch.frexp(values.abs().amax(dim=1, keepdim=True) / FP8_MAX)
    # Half of a power of two is the power below, and an output of zeros has no exponent.
    exponent = (exponent - (part == 0.5).int()).masked_fill(part == 0, 0)
    data = torch.ldexp(values, -exponent).to(torch.float8_e4m3fn)
    return data, torch.ldexp(factor.float().expand_as(exponent), exponent)
