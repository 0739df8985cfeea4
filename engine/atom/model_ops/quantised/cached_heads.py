"""Keys and values of an fp8 cache: a scale for every token and head, found when it is stored.

For backends in PyTorch; kernels do the same by themselves. The cache's own functions are here so
that a plain cache and one in fp8 are read and written by the same lines.
"""

from __future__ import annotations

import torch

from atom.model_ops.values import LayerCache

FP8_DTYPES = (torch.float8_e4m3fn, torch.float8_e4m3fnuz)


def store_heads(cache: LayerCache, k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor) -> None:
    """Store k, v [T, Hkv, D] in their slots [T] of the cache."""
    for x, stored, scales in ((k, cache.k, cache.k_scale), (v, cache.v, cache.v_scale)):
        if scales is None:
            stored.flatten(0, 1).index_copy_(0, slots, x.to(stored.dtype))
            continue
        codes, scale = quantise_heads(x, stored.dtype)
        bits = stored.flatten(0, 1).view(torch.uint8)
        bits.index_copy_(0, slots, codes.view(torch.uint8))
        scales.flatten(0, 1).index_copy_(0, slots, scale)


def quantise_heads(x: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise x [T, heads, D] → codes of the same shape, and scales [T, heads] float32, 1 for
    zeros."""
    limit, wide = torch.finfo(dtype).max, x.float()
    largest = wide.abs().amax(-1)
    scale = torch.where(largest > 0, largest / limit, 1.0)
    return (wide / scale[..., None]).clamp(-limit, limit).to(dtype), scale


def gather_heads(
    cache: LayerCache, index: torch.Tensor, dtype: torch.dtype, *, slots: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gather keys and values of the blocks that index names, [*index, S, Hkv, D], or of its slots,
    [*index, Hkv, D], in dtype."""
    keys_values = []
    for stored, scales in ((cache.k, cache.k_scale), (cache.v, cache.v_scale)):
        stored = stored.flatten(0, 1) if slots else stored
        found = _select(stored, index)
        if scales is not None:
            scale = _select(scales.flatten(0, 1) if slots else scales, index)
            found = found.float() * scale[..., None]
        keys_values.append(found.to(dtype))
    return keys_values[0], keys_values[1]


def _select(tensor: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return tensor.index_select(0, index) if index.dim() == 1 else tensor[index]
