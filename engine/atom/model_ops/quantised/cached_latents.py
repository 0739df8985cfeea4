"""Entries of latent attention and keys of indexers in an fp8 cache: a scale for every token.

A latent is normed before it is stored, so one scale serves its elements. The rotated key is not
normed, and its few elements carry every position: it stays in 16 bits. For backends in PyTorch;
kernels contain the same steps. The same code reads and writes a plain cache.
"""

from __future__ import annotations

import torch

from atom.model_ops.index_values import IndexCache
from atom.model_ops.quantised.cached_heads import quantise_heads
from atom.model_ops.values import LatentCache

ROTATED_DTYPE = torch.bfloat16  # of rotated keys of fp8 latents, for any dtype of the model


def store_entries(cache: LatentCache, entries: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """Store entries [T, kv_rank + rope_dim] in their slots [T]; return the values that the cache
    holds."""
    if cache.scale is None or cache.keys is None:
        cache.entries.flatten(0, 1).index_copy_(0, slots, entries.to(cache.entries.dtype))
        return entries
    rank = cache.entries.shape[-1]
    latent, key = entries[:, :rank], entries[:, rank:].to(cache.keys.dtype)
    held = _store_rows(cache.entries, cache.scale, latent, slots)
    cache.keys.flatten(0, 1).index_copy_(0, slots, key)
    return torch.cat((held, key.float()), dim=-1).to(entries.dtype)


def gather_entries(
    cache: LatentCache, index: torch.Tensor, dtype: torch.dtype, *, slots: bool = False
) -> torch.Tensor:
    """Gather entries of the blocks that index names, [*index, S, entry], or of its slots, [*index,
    entry], in dtype."""
    latents = _rows(cache.entries, cache.scale, index, slots).to(dtype)
    if cache.keys is None:
        return latents
    return torch.cat((latents, _rows(cache.keys, None, index, slots).to(dtype)), dim=-1)


def store_index_keys(cache: IndexCache, keys: torch.Tensor, slots: torch.Tensor) -> None:
    """Store keys [T, dim] of an indexer in their slots [T]."""
    if cache.scale is None:
        cache.keys.flatten(0, 1).index_copy_(0, slots, keys.to(cache.keys.dtype))
    else:
        _store_rows(cache.keys, cache.scale, keys, slots)


def gather_index_keys(cache: IndexCache, slots: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Gather an indexer's keys [n, dim] in slots [n], in dtype."""
    return _rows(cache.keys, cache.scale, slots, True).to(dtype)


def _store_rows(
    stored: torch.Tensor, scales: torch.Tensor, x: torch.Tensor, slots: torch.Tensor
) -> torch.Tensor:
    codes, scale = quantise_heads(x, stored.dtype)
    bits = stored.flatten(0, 1).view(torch.uint8)
    bits.index_copy_(0, slots, codes.view(torch.uint8))
    scales.flatten(0, 1).index_copy_(0, slots, scale)
    return codes.float() * scale[:, None]


def _rows(
    stored: torch.Tensor, scales: torch.Tensor | None, index: torch.Tensor, slots: bool
) -> torch.Tensor:
    found = (stored.flatten(0, 1) if slots else stored)[index]
    if scales is None:
        return found
    return found.float() * (scales.flatten(0, 1) if slots else scales)[index][..., None]
