"""MLA: decodes absorbed, by AITER's MLA kernel, prompts with keys up-projected.

A decode's queries are absorbed through the keys' half of `up`, and its results through the values';
the persistent kernel serves every number of heads. Prompts' latents are gathered, multiplied by
`up`, and attended to by the ragged kernel. Tokens that attend to a selection (DeepSeek V3.2) are
rows of the decode's kernel, whose pages are single tokens.
"""

from __future__ import annotations

import torch

from atom.model_ops.backends.aiter_ops.cache_views import prompt_keys
from atom.model_ops.backends.aiter_ops.dense import Norms
from atom.model_ops.backends.aiter_ops.library import Library
from atom.model_ops.backends.aiter_ops.mla_rows import (
    LatentDecode,
    LatentRows,
    latent_rows,
    selected_rows,
)
from atom.model_ops.backends.aiter_ops.rope_tables import NEOX, RopeTables
from atom.model_ops.values import LatentCache, LatentShape, LatentTokens, LinearWeight, Rotary
from atom.utils.forward_context import AttentionMetaData

# Tokens of one call, each a separate row: rows are divided in a compute unit's memory.
_ROWS = 1024


class MLAAttention:
    def __init__(self, library: Library, norms: Norms) -> None:
        self._library = library
        self._norms = norms
        self._tables = RopeTables()

    def mla_rope_store(
        self,
        tokens: LatentTokens,
        shape: LatentShape,
        rotary: Rotary,
        cache: LatentCache,
        slot_mapping: torch.Tensor,
    ) -> LatentTokens:
        assert rotary.k_norm is not None
        latent, key = tokens.entries.split([shape.kv_rank, shape.rope_dim], dim=-1)
        latent, key = self._norms.rms_norm(latent, rotary.k_norm), key.contiguous()
        cos, sin = self._tables.halves(rotary.cos_sin, tokens.q.dtype)
        self._library["rope_cached_positions_2c_fwd_inplace"](
            input_x=tokens.q[..., shape.nope_dim :].unsqueeze(0),
            input_y=key[None, :, None],
            cos=cos,
            sin=sin,
            positions=rotary.positions.unsqueeze(0),
            rotate_style=NEOX,
            reuse_freqs_front_part=True,
            nope_first=False,
        )
        self._library["concat_and_cache_mla"](
            kv_c=latent,
            k_pe=key,
            kv_cache=cache.entries,
            slot_mapping=slot_mapping,
            kv_cache_dtype="auto",
            scale=torch.ones((), dtype=torch.float32, device=key.device),
        )
        return LatentTokens(tokens.q, torch.cat((latent, key), dim=-1))

    def mla_attention(
        self,
        tokens: LatentTokens,
        shape: LatentShape,
        up: LinearWeight,
        cache: LatentCache,
        step: AttentionMetaData,
    ) -> torch.Tensor:
        q, decodes = tokens.q, step.num_decodes
        out = q.new_empty((q.shape[0], shape.num_heads, shape.value_dim))
        if decodes:
            out[:decodes] = self._decode(q[:decodes], shape, up, cache, step)
        if decodes < step.context_lens.shape[0]:
            out[decodes:] = self._prefill(q[decodes:], shape, up, cache, step)
        return out.flatten(1)

    def _decode(
        self,
        q: torch.Tensor,
        shape: LatentShape,
        up: LinearWeight,
        cache: LatentCache,
        step: AttentionMetaData,
    ) -> torch.Tensor:
        asked = LatentDecode(shape.num_heads, q.dtype, cache.block_size)
        rows = latent_rows(self._library, asked, step)
        # Padding of a captured step: rows that attend to no token.
        nothing = step.context_lens[: len(q)] == 0
        return self._in_latent(q, shape, up, cache, (rows, nothing))

    def sparse_mla_attention(
        self,
        tokens: LatentTokens,
        shape: LatentShape,
        up: LinearWeight,
        cache: LatentCache,
        selected: torch.Tensor,
    ) -> torch.Tensor:
        asked = LatentDecode(shape.num_heads, tokens.q.dtype, block_size=1)
        parts = []
        for q, own in zip(tokens.q.split(_ROWS), selected.split(_ROWS), strict=True):
            rows = selected_rows(self._library, asked, own)
            nothing = (own < 0).all(1)
            parts.append(self._in_latent(q, shape, up, cache, (rows, nothing)))
        return torch.cat(parts).flatten(1)

    def _in_latent(
        self,
        q: torch.Tensor,
        shape: LatentShape,
        up: LinearWeight,
        cache: LatentCache,
        where: tuple[LatentRows, torch.Tensor],
    ) -> torch.Tensor:
        """Attend with queries that absorbed the up-projection; `where`: the rows of q, and the rows
        that attend to no token."""
        rows, nothing = where
        own = up.data.view(shape.num_heads, -1, shape.kv_rank)
        keys, values = own.split([shape.nope_dim, shape.value_dim], dim=1)
        still, turning = q.split([shape.nope_dim, shape.rope_dim], dim=-1)
        absorbed = torch.bmm(still.transpose(0, 1), keys).transpose(0, 1)  # [rows, Hq, kv_rank]
        latent = torch.empty_like(absorbed, memory_format=torch.contiguous_format)
        work = dict(rows.work)
        self._library["mla_decode_fwd"](
            q=torch.cat((absorbed, turning), dim=-1),
            kv_buffer=cache.entries.view(-1, rows.page_size, 1, shape.entry_dim),
            o=latent,
            qo_indptr=rows.queries,
            kv_indptr=rows.pages,
            kv_indices=rows.indices,
            kv_last_page_lens=rows.last,
            max_seqlen_q=1,
            page_size=rows.page_size,
            nhead_kv=1,
            sm_scale=shape.scale,
            work_meta_data=work.pop("work_metadata_ptrs"),
            **work,
        )
        latent.masked_fill_(nothing[:, None, None], 0)
        return torch.bmm(latent.transpose(0, 1), values.transpose(1, 2)).transpose(0, 1)

    def _prefill(
        self,
        q: torch.Tensor,
        shape: LatentShape,
        up: LinearWeight,
        cache: LatentCache,
        step: AttentionMetaData,
    ) -> torch.Tensor:
        keys = prompt_keys(step, cache.block_size)
        entries = cache.entries[keys.block, keys.offset]  # [K, kv_rank + rope_dim]
        latent, turning = entries.split([shape.kv_rank, shape.rope_dim], dim=-1)
        up_projected = self._library["tgemm.mm"](
            inp=latent.contiguous(), weights=up.data, otype=q.dtype
        ).view(len(entries), shape.num_heads, -1)
        k, v = up_projected.split([shape.nope_dim, shape.value_dim], dim=-1)
        k = torch.cat((k, turning.unsqueeze(1).expand(-1, shape.num_heads, -1)), dim=-1)
        out: torch.Tensor = self._library["flash_attn_varlen_func"](
            q=q.contiguous(),
            k=k,
            v=v.contiguous(),
            cu_seqlens_q=step.query_starts[step.num_decodes :] - step.num_decodes,
            cu_seqlens_k=keys.starts,
            max_seqlen_q=step.max_query_len,
            max_seqlen_k=step.max_context_len,
            softmax_scale=shape.scale,
            causal=True,
        )
        return out
