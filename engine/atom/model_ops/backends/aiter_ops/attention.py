"""Attention of a step: decodes by AITER's paged kernels, prompts by its ragged one.

Decodes read the cache in place: the assembly kernel for heads of 128 without a window, the Gluon
kernel for sinks, other scales and heads of 64. Prompts attend to contiguous keys: their own if none
of them has a history, else those gathered from the cache.
"""

from __future__ import annotations

import torch

from atom.model_ops.backends.aiter_ops.cache_views import (
    TiledCache,
    gather,
    prompt_keys,
    tiled,
)
from atom.model_ops.backends.aiter_ops.library import Library
from atom.model_ops.backends.aiter_ops.limits import is_for_assembly
from atom.model_ops.backends.aiter_ops.rope_store import Heads, RopeStore
from atom.model_ops.values import AttentionShape, LayerCache, Rotary
from atom.utils.forward_context import AttentionMetaData

_GLUON_PARTITION_TOKENS = 256


class PagedAttention:
    def __init__(self, library: Library, rope_store: RopeStore) -> None:
        self._library = library
        self._rope_store = rope_store

    def attention(
        self,
        qkv: torch.Tensor,
        shape: AttentionShape,
        rotary: Rotary,
        cache: LayerCache,
        step: AttentionMetaData,
    ) -> torch.Tensor:
        heads = self._rope_store.store(qkv, shape, rotary, cache, step.slot_mapping)
        return self._attend(heads, shape, tiled(cache), step)

    def paged_attention(
        self, q: torch.Tensor, shape: AttentionShape, cache: LayerCache, step: AttentionMetaData
    ) -> torch.Tensor:
        return self._attend(q.contiguous(), shape, tiled(cache), step)

    def _attend(
        self,
        heads: Heads | torch.Tensor,
        shape: AttentionShape,
        cache: TiledCache,
        step: AttentionMetaData,
    ) -> torch.Tensor:
        """Attend with `heads`, of all tokens, or their queries alone."""
        q = heads.q if isinstance(heads, Heads) else heads
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        decodes = step.num_decodes
        if decodes:
            own = q[:decodes].contiguous()
            if is_for_assembly(shape):
                self._decode_by_assembly(own, cache, step, out[:decodes])
            else:
                self._decode_by_gluon(own, shape, cache, step, out[:decodes])
            # Padding of a captured step: rows that attend to no token.
            alone = step.context_lens[:decodes, None, None] == 0
            out[:decodes].masked_fill_(alone, 0)
        if decodes < step.context_lens.shape[0]:
            out[decodes:] = self._prefill(heads, shape, cache, step)
        return out.flatten(1)

    def _decode_by_assembly(
        self, q: torch.Tensor, cache: TiledCache, step: AttentionMetaData, out: torch.Tensor
    ) -> None:
        rows = q.shape[0]
        self._library["pa_fwd_asm"](
            Q=q,
            K=cache.k,
            V=cache.v,
            block_tables=step.block_tables[:rows],
            context_lens=step.context_lens[:rows],
            block_tables_stride0=step.block_tables.stride(0),
            max_qlen=1,
            K_QScale=cache.k_scale,
            V_QScale=cache.v_scale,
            out_=out,
        )

    def _decode_by_gluon(
        self,
        q: torch.Tensor,
        shape: AttentionShape,
        cache: TiledCache,
        step: AttentionMetaData,
        out: torch.Tensor,
    ) -> None:
        rows, kv_heads = q.shape[0], shape.num_kv_heads
        parts = int(
            self._library["get_recommended_splits"](num_sequences=rows, num_kv_heads=kv_heads)
        )
        partial = (rows, kv_heads, parts, shape.num_heads // kv_heads)
        sums = torch.empty((2, *partial), dtype=torch.float32, device=q.device)
        self._library["pa_decode_gluon"](
            output=out,
            query=q,
            key_cache=cache.k,
            value_cache=cache.v,
            context_lengths=step.context_lens[:rows],
            block_tables=step.block_tables[:rows],
            softmax_scale=shape.scale,
            query_length=1,
            max_context_partition_num=parts,
            context_partition_size=_GLUON_PARTITION_TOKENS,
            compute_type=q.dtype,
            query_scale=None,
            key_scale=None,
            value_scale=None,
            exp_sums=sums[0],
            max_logits=sums[1],
            temporary_output=q.new_empty((*partial, shape.head_dim)),
            sinks=shape.sinks,
            ps=True,
        )

    def _prefill(
        self,
        heads: Heads | torch.Tensor,
        shape: AttentionShape,
        cache: TiledCache,
        step: AttentionMetaData,
    ) -> torch.Tensor:
        first = step.num_decodes
        q = (heads.q if isinstance(heads, Heads) else heads)[first:]
        starts = step.query_starts[first:] - first
        # As many keys as queries: no prompt has a history. In fp8 a prompt attends to what the
        # cache holds of it, so that a prefix found there changes nothing.
        fresh = step.prompts.context == q.shape[0] and cache.k_scale is None
        if fresh and isinstance(heads, Heads):
            k, v, key_starts = heads.k[first:], heads.v[first:], starts
        else:
            keys = prompt_keys(step, cache.k.shape[3])
            (k, v), key_starts = gather(cache, keys, q.dtype), keys.starts
        out: torch.Tensor = self._library["flash_attn_varlen_func"](
            q=q,
            k=k,
            v=v,
            cu_seqlens_q=starts,
            cu_seqlens_k=key_starts,
            max_seqlen_q=step.max_query_len,
            max_seqlen_k=step.max_context_len,
            softmax_scale=shape.scale,
            causal=True,
            sink_ptr=shape.sinks,
        )
        return out
