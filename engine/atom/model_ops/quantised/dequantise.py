"""Dequantise a matrix: the reference for every backend's product with a format.

Used by the reference for each product, and by backends of the CPU once, when weights are prepared.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F

from atom.model_ops.quantised.codes import exponent_scales, fp4_values, unpack_pairs
from atom.model_ops.quantised.mxfp4_interleaved import in_rows
from atom.model_ops.values import INT4_FORMATS, LinearWeight, Scales, WeightFormat

_SYMMETRIC_ZERO = 8


def dequantise(data: torch.Tensor, scales: Scales) -> torch.Tensor:
    """Dequantise data as stored [.., out, in or in / 2] → float32 [.., out, in]."""
    if scales.format is WeightFormat.MXFP4_INTERLEAVED:
        data, scales = in_rows(data, scales)
    values = _values(data, scales)
    if scales.groups is not None:
        groups = scales.groups
        return groups.in_place(values * groups.spread(scales.scale.float()))
    rows, columns = scales.block
    scale = exponent_scales(scales.scale) if scales.format is WeightFormat.MXFP4 else scales.scale
    wide = scale.float().repeat_interleave(rows, -2)[..., : values.shape[-2], :]
    return values * wide.repeat_interleave(columns, -1)[..., : values.shape[-1]]


def plain(w: LinearWeight, dtype: torch.dtype) -> torch.Tensor:
    """Return the matrix' numbers [out, in], in dtype unless it is stored plain."""
    return w.data if w.scales is None else dequantise(w.data, w.scales).to(dtype)


def expanded(w: LinearWeight) -> LinearWeight:
    """Convert a matrix to plain storage, in the dtype of the activations."""
    if w.scales is None:
        return w
    return replace(w, data=plain(w, w.scales.dtype), scales=None)


def prepare_for_cpu(w: LinearWeight) -> LinearWeight:
    """Prepare a matrix of the CPU's backends: plain, with inputs outermost. A product of few rows
    then needs no rearranged copy of the matrix, which is a large part of a decode step's cost."""
    w = expanded(w)
    return replace(w, data=w.data.mT.contiguous().mT)


def multiply(x: torch.Tensor, w: LinearWeight) -> torch.Tensor:
    """Multiply rows x [T, in] by torch's library."""
    return F.linear(x, plain(w, x.dtype), w.bias)


def _values(data: torch.Tensor, scales: Scales) -> torch.Tensor:
    if scales.format is WeightFormat.MXFP4:
        return fp4_values(unpack_pairs(data))
    if scales.format not in INT4_FORMATS:
        return data.float()
    codes = unpack_pairs(data).float()
    if scales.zero is None:
        return codes - _SYMMETRIC_ZERO
    zero = unpack_pairs(scales.zero.transpose(-1, -2)).transpose(-1, -2).float()  # [.., out, G]
    if scales.groups is not None:
        return codes - scales.groups.spread(zero)
    return codes - zero.repeat_interleave(scales.block[1], -1)[..., : codes.shape[-1]]
