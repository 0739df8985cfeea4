"""A block of the KV cache in the layout of AITER's kernels, over the memory of a LayerCache.

A block takes the same bytes in every layout, and only these adapters access its elements, so the
layer's tensors are viewed with other shapes. x elements are 16 bytes; S tokens of a block: k [N,
Hkv, D / x, S, x], v [N, Hkv, S / x, D, x], scales [N, Hkv, S].
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from atom.model_ops.values import LayerCache
from atom.utils.forward_context import AttentionMetaData

_VECTOR_BYTES = 16


@dataclass(frozen=True, slots=True)
class TiledCache:
    """A layer's cache in AITER's layout; scales only in fp8."""

    k: torch.Tensor
    v: torch.Tensor
    k_scale: torch.Tensor | None
    v_scale: torch.Tensor | None

    @property
    def v_plain(self) -> torch.Tensor:
        """Return the values with the shape [N, Hkv, D, S] that `reshape_and_cache` expects,
        although it writes them in AITER's order (its asm_layout)."""
        blocks, heads, chunks, dim, x = self.v.shape
        return self.v.view(blocks, heads, dim, chunks * x)


def tiled(cache: LayerCache) -> TiledCache:
    blocks, size, heads, dim = cache.k.shape
    x = _VECTOR_BYTES // cache.k.element_size()
    k_scale, v_scale = (
        None if scale is None else scale.view(blocks, heads, size)
        for scale in (cache.k_scale, cache.v_scale)
    )
    return TiledCache(
        cache.k.view(blocks, heads, dim // x, size, x),
        cache.v.view(blocks, heads, size // x, dim, x),
        k_scale,
        v_scale,
    )


@dataclass(frozen=True, slots=True)
class PromptKeys:
    """The tokens that a step's prompts attend to, row after row: block and offset [K] of each in
    the cache, and where each row's begin, starts [rows + 1] int32."""

    block: torch.Tensor
    offset: torch.Tensor
    starts: torch.Tensor


def prompt_keys(step: AttentionMetaData, block_size: int) -> PromptKeys:
    """Return the places of prompts' keys, computed once a step for all layers."""
    key = "aiter.prompt_keys"
    found: PromptKeys | None = step.per_step.get(key)
    if found is None:
        contexts = step.context_lens[step.num_decodes :]
        total = step.prompts.context
        total = int(contexts.sum()) if total is None else total
        ends = contexts.cumsum(0, dtype=torch.int64)
        starts = torch.cat((ends.new_zeros(1), ends))
        rows = torch.arange(len(contexts), device=contexts.device)
        row = rows.repeat_interleave(contexts, output_size=total)
        position = torch.arange(total, device=contexts.device) - starts[row]
        block = step.block_tables[step.num_decodes :][row, position // block_size].long()
        found = PromptKeys(block, position % block_size, starts.to(torch.int32))
        step.per_step[key] = found
    return found


def gather(cache: TiledCache, keys: PromptKeys, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """Gather keys and values [K, Hkv, D] of these tokens, in dtype."""
    block, offset, x = keys.block, keys.offset, cache.k.shape[-1]
    # float8 tensors are not indexed everywhere; their bytes are.
    k = _bytes(cache.k)[block, :, :, offset].flatten(2).view(cache.k.dtype)
    v = _bytes(cache.v)[block, :, offset // x, :, offset % x].view(cache.v.dtype)
    if cache.k_scale is None or cache.v_scale is None:
        return k, v
    k = k.float() * cache.k_scale[block, :, offset].unsqueeze(-1)
    v = v.float() * cache.v_scale[block, :, offset].unsqueeze(-1)
    return k.to(dtype), v.to(dtype)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.uint8) if tensor.element_size() == 1 else tensor
