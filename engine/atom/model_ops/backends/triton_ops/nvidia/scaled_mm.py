"""Products of many tokens with fp8 matrices by the vendor's library, if it supports the format.

Measured only on an H200 (compute capability 9.0): blocks of 128 × 128 with activations scaled by
128 inputs, and a scale per output with one per token; 1,100 TFLOP/s where our kernel has 500. On
other cards, for other blocks and for few tokens w8a8_gemm.py multiplies.
"""

from __future__ import annotations

from functools import cache

import torch

from atom.model_ops.backends.triton_ops.quantise_activations import (
    GROUP,
    quantise_groups,
    quantise_rows,
)
from atom.model_ops.values import LinearWeight, WeightFormat

# Tokens up to which our kernel is faster, and of a product that may stay in parts, because a norm
# adds them up: the library divides no inner dimension.
_FEW, _FEW_IN_PARTS = 16, 128
# The library reads the activations' scales in vectors of this many tokens.
_TOKENS = 4
_SIDE = 16  # the sides of a matrix are multiples of it


def is_faster(tokens: int, *, in_parts: bool) -> bool:
    """Return whether the library is faster than w8a8_gemm.py for so many tokens."""
    return tokens > (_FEW_IN_PARTS if in_parts else _FEW)


def takes(x: torch.Tensor, w: LinearWeight) -> bool:
    """Return whether the library supports the product of x [T, in] with the matrix."""
    if w.format not in (WeightFormat.FP8, WeightFormat.FP8_BLOCKS) or not _has_it(x.device):
        return False
    if w.format is WeightFormat.FP8:
        return x.dtype is torch.bfloat16 and w.outputs % _SIDE == 0 and w.inputs % _SIDE == 0
    assert w.scales is not None
    even = w.outputs % GROUP == 0 and w.inputs % GROUP == 0
    return x.dtype is torch.bfloat16 and even and w.scales.block == (GROUP, GROUP)


@cache
def _has_it(device: torch.device) -> bool:
    if device.type != "cuda" or torch.version.hip is not None:
        return False
    return torch.cuda.get_device_capability(device) == (9, 0)


def multiply(x: torch.Tensor, w: LinearWeight) -> torch.Tensor:
    """Map x [T, in] bfloat16 contiguous, w that `takes` → [T, out] bfloat16."""
    assert w.scales is not None
    tokens = x.shape[0]
    if w.format is WeightFormat.FP8:
        codes, x_scale = quantise_rows(x, w.data.dtype, tokens + -tokens % _TOKENS)
        scale = w.scales.scale.t()
    else:
        codes, x_scale = quantise_groups(
            x, w.data.dtype, rows=tokens + -tokens % _TOKENS, tokens_first=False
        )
        scale = w.scales.scale.t()
    out = torch._scaled_mm(  # torch's own name for it; nn.functional's has the same kernels
        codes, w.data.t(), x_scale, scale, out_dtype=x.dtype
    )[:tokens]
    return out if w.bias is None else out.add_(w.bias)
