"""MLA by the attention kernel over latents: each head's query is brought into the latent, whose
entries are keys and values of all heads. The one form for prompts and decodes alike."""

from __future__ import annotations

import torch

from atom.model_ops.backends.native_cpu.attention import attend_query_by_query
from atom.model_ops.backends.native_cpu.dense import product, rms_norm
from atom.model_ops.backends.torch_cpu.mla import rotate_and_store
from atom.model_ops.values import (
    AttentionShape,
    LatentCache,
    LatentShape,
    LatentTokens,
    LayerCache,
    LinearWeight,
    Rotary,
)
from atom.utils.forward_context import AttentionMetaData


def mla_rope_store(
    tokens: LatentTokens,
    shape: LatentShape,
    rotary: Rotary,
    cache: LatentCache,
    slot_mapping: torch.Tensor,
) -> LatentTokens:
    assert rotary.k_norm is not None
    latent = tokens.entries[:, : shape.kv_rank]
    latent.copy_(rms_norm(latent.contiguous(), rotary.k_norm))
    return rotate_and_store(tokens, shape, rotary, cache, slot_mapping)


def mla_attention(
    tokens: LatentTokens,
    shape: LatentShape,
    up: LinearWeight,
    cache: LatentCache,
    step: AttentionMetaData,
) -> torch.Tensor:
    by_head = up.data.unflatten(0, (shape.num_heads, -1))  # [Hq, nope + value, rank]
    absorbed = torch.empty(len(tokens.q), shape.num_heads, shape.entry_dim)
    absorbed[..., shape.kv_rank :] = tokens.q[..., shape.nope_dim :]
    for head, matrix in enumerate(by_head):
        still = tokens.q[:, head, : shape.nope_dim].contiguous()
        keys = matrix[: shape.nope_dim].contiguous()
        absorbed[:, head, : shape.kv_rank] = product(still, LinearWeight(keys.mT))
    entries = cache.entries.unsqueeze(2)
    heads = AttentionShape(shape.num_heads, 1, shape.entry_dim, shape.scale)
    found = attend_query_by_query(absorbed, heads, LayerCache(entries, entries), step)
    latents = found.unflatten(1, (shape.num_heads, -1))[..., : shape.kv_rank]
    out = torch.empty(len(tokens.q), shape.num_heads, shape.value_dim)
    for head, matrix in enumerate(by_head):
        values = matrix[shape.nope_dim :].mT.contiguous()
        out[:, head] = product(latents[:, head].contiguous(), LinearWeight(values.mT))
    return out.flatten(1)
