"""Attention: grouped-query attention over the paged KV cache.

Holds its layer's cache tensors once the runner has allocated them (`bind_cache`), and takes the
step's metadata from the forward context. Knows neither scheduling nor how blocks were chosen.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from atom.model_ops.backends.interface import AttentionShape, Ops
from atom.model_ops.layernorm import RMSNorm
from atom.utils.forward_context import LastTokens, get_forward_context

# Weights of the norms of q and k, their epsilon, cos_sin, positions, and both caches.
_Rotary = tuple[
    torch.Tensor | None,
    torch.Tensor | None,
    float,
    torch.Tensor,
    torch.Tensor,
    torch.Tensor,
    torch.Tensor,
]


class Attention(nn.Module):
    def __init__(
        self,
        shape: AttentionShape,
        *,
        q_norm: RMSNorm | None,
        k_norm: RMSNorm | None,
        ops: Ops,
    ) -> None:
        super().__init__()
        self.shape = shape
        self._ops = ops
        # Kept out of the module tree: the norms' parameters belong to the layer that names them.
        self._norms = (q_norm, k_norm)
        self._k_cache = self._v_cache = torch.empty(0)

    def bind_cache(self, k_cache: torch.Tensor, v_cache: torch.Tensor) -> None:
        """[blocks, block_size, kv_heads, head_dim] each."""
        self._k_cache, self._v_cache = k_cache, v_cache

    def forward(
        self,
        qkv: torch.Tensor,
        positions: torch.Tensor,
        cos_sin: torch.Tensor,
        last: LastTokens | None = None,
        keys_values: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """qkv [T, (Hq + 2·Hkv)·D] → [T, Hq·D]; positions of all T tokens. With `last` qkv is of its
        rows alone, [R', ..] → [R', Hq·D], and keys_values [T, 2·Hkv·D] are all tokens'."""
        metadata = get_forward_context().attn_metadata
        if last is None or keys_values is None:
            return self._ops.attention(qkv, self.shape, *self._rotary(cos_sin, positions), metadata)
        rotary = self._rotary(cos_sin, positions)
        no_queries = replace(self.shape, num_heads=0)
        self._ops.qk_norm_rope_store(keys_values, no_queries, *rotary, metadata.slot_mapping)
        # Attended to as decodes are, which stores the keys and values of these rows once more.
        rotary = self._rotary(cos_sin, positions[last.tokens])
        return self._ops.attention(qkv, self.shape, *rotary, last.attention)

    def _rotary(self, cos_sin: torch.Tensor, positions: torch.Tensor) -> _Rotary:
        """What both operations take between the shape and the step's metadata."""
        q_norm, k_norm = self._norms
        return (
            None if q_norm is None else q_norm.weight,
            None if k_norm is None else k_norm.weight,
            0.0 if q_norm is None else q_norm.eps,
            cos_sin,
            positions,
            self._k_cache,
            self._v_cache,
        )
