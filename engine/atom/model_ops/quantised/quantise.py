"""Quantise plain matrices as they are loaded (`--quantization`).

The quantisation is symmetric, by the largest magnitude of the elements that share a scale; there is
no calibration. Elements that are all zero have scale 1. The same functions quantise activations in
the reference of the kernels' tests.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from atom.model_ops.quantised.codes import FP4_MAX, FP8_MAX, fp4_codes, pack_pairs
from atom.model_ops.values import WeightFormat

_INT8_MAX = 127.0
_LEAST_EXPONENT, _MOST_EXPONENT = -127, 127


def quantise(
    x: torch.Tensor, format: WeightFormat, block: tuple[int, int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise x [out, in] of any floating-point dtype → data and scale as `Scales` has them.
    Shapes need be no multiples of the block."""
    if format is WeightFormat.MXFP4:
        return _microscaled(x.float())
    rows, columns = x.shape
    tall, wide = block[0], block[1] or columns
    padded = F.pad(x.float(), (0, -columns % wide, 0, -rows % tall))
    tiles = padded.unflatten(1, (-1, wide)).unflatten(0, (-1, tall))  # [R, tall, C, wide]
    limit = _INT8_MAX if format is WeightFormat.INT8 else FP8_MAX
    scale = _scale(tiles.abs().amax(dim=(1, 3)), limit)
    codes = (tiles / scale[:, None, :, None]).flatten(2).flatten(0, 1)[:rows, :columns]
    if format is WeightFormat.INT8:
        return codes.round().to(torch.int8), scale
    return codes.clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn), scale


def _microscaled(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise to MXFP4: the shared exponent is that of the largest magnitude, less e2m1's own (OCP
    Microscaling Formats 1.0, section 6.3)."""
    groups = x.unflatten(1, (-1, 32))
    largest = groups.abs().amax(dim=2)
    exponent = torch.frexp(largest).exponent - 1 - int(math.log2(FP4_MAX))
    exponent = exponent.masked_fill(largest == 0, 0).clamp(_LEAST_EXPONENT, _MOST_EXPONENT)
    values = torch.ldexp(groups, -exponent[:, :, None]).clamp(-FP4_MAX, FP4_MAX)
    return pack_pairs(fp4_codes(values.flatten(1))), (exponent + 127).to(torch.uint8)


def _scale(largest: torch.Tensor, limit: float) -> torch.Tensor:
    return torch.where(largest > 0, largest / limit, 1.0)
