"""Norms of heads, rope and the write to the cache: one fused kernel of AITER's, or two.

With norms `fused_qk_norm_rope_cache_quant_shuffle`; without, the rope in place and then the cache
writer of the cache's element. AITER's tables are in the model's dtype, as Hugging Face computes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from atom.model_ops.backends.aiter_ops.cache_views import TiledCache, tiled
from atom.model_ops.backends.aiter_ops.library import Library
from atom.model_ops.backends.aiter_ops.rope_tables import NEOX, RopeTables
from atom.model_ops.values import AttentionShape, LayerCache, Rotary

_FUSED = "fused_qk_norm_rope_cache_quant_shuffle"


@dataclass(frozen=True, slots=True)
class Heads:
    """The heads q [T, Hq, D], k, v [T, Hkv, D], contiguous, normed and rotated."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor


class RopeStore:
    def __init__(self, library: Library) -> None:
        self._library = library
        self._tables = RopeTables()

    def qk_norm_rope_store(
        self,
        qkv: torch.Tensor,
        shape: AttentionShape,
        rotary: Rotary,
        cache: LayerCache,
        slot_mapping: torch.Tensor,
    ) -> torch.Tensor:
        return self.store(qkv, shape, rotary, cache, slot_mapping).q

    def store(
        self,
        qkv: torch.Tensor,
        shape: AttentionShape,
        rotary: Rotary,
        cache: LayerCache,
        slot_mapping: torch.Tensor,
    ) -> Heads:
        """Compute `qk_norm_rope_store`; return the keys and values as well as the queries."""
        blocks = tiled(cache)
        if rotary.q_norm is not None and rotary.k_norm is not None:
            return self._normed(qkv, shape, rotary, blocks, slot_mapping)
        heads = _split(qkv, shape)
        cos, sin = self._tables.halves(rotary.cos_sin, qkv.dtype)
        self._library["rope_cached_positions_2c_fwd_inplace"](
            input_x=heads.q.unsqueeze(0),
            input_y=heads.k.unsqueeze(0),
            cos=cos,
            sin=sin,
            positions=rotary.positions.unsqueeze(0),
            rotate_style=NEOX,
            reuse_freqs_front_part=True,
            nope_first=False,
        )
        self._write(heads, blocks, slot_mapping)
        return heads

    def _write(self, heads: Heads, cache: TiledCache, slot_mapping: torch.Tensor) -> None:
        common = {
            "key": heads.k,
            "value": heads.v,
            "key_cache": cache.k,
            "value_cache": cache.v_plain,
            "slot_mapping": slot_mapping,
            "asm_layout": True,
        }
        if cache.k_scale is None:
            self._library["reshape_and_cache"](**common, kv_cache_dtype="auto")
            return
        self._library["reshape_and_cache_with_pertoken_quant"](
            **common, k_dequant_scales=cache.k_scale, v_dequant_scales=cache.v_scale
        )

    def _normed(
        self,
        qkv: torch.Tensor,
        shape: AttentionShape,
        rotary: Rotary,
        cache: TiledCache,
        slot_mapping: torch.Tensor,
    ) -> Heads:
        assert rotary.q_norm is not None
        assert rotary.k_norm is not None
        packed = not self._library.takes(_FUSED, "q")
        heads = _split(qkv, shape, copied=not packed)
        # Releases before v0.1.14 write q and k back into qkv.
        inputs = {"qkv": qkv} if packed else {"q": heads.q, "k": heads.k, "v": heads.v}
        scale = torch.ones((), dtype=torch.float32, device=qkv.device)
        is_fp8 = cache.k_scale is not None
        self._library[_FUSED](
            **inputs,
            num_heads_q=shape.num_heads,
            num_heads_k=shape.num_kv_heads,
            num_heads_v=shape.num_kv_heads,
            head_dim=shape.head_dim,
            eps=rotary.q_norm.eps,
            qw=rotary.q_norm.weight,
            kw=rotary.k_norm.weight,
            cos_sin_cache=self._tables.joined(rotary.cos_sin, qkv.dtype),
            is_neox_style=True,
            pos_ids=rotary.positions,
            k_cache=cache.k,
            v_cache=cache.v,
            slot_mapping=slot_mapping,
            kv_cache_dtype="fp8" if is_fp8 else "auto",
            k_scale=cache.k_scale if is_fp8 else scale,
            v_scale=cache.v_scale if is_fp8 else scale,
        )
        return _split(qkv, shape) if packed else heads


def _split(qkv: torch.Tensor, shape: AttentionShape, *, copied: bool = True) -> Heads:
    """Split qkv [T, (Hq + 2·Hkv)·D] into its heads; copies are contiguous, which kernels without a
    documented stride are given."""
    sizes = [shape.num_heads, shape.num_kv_heads, shape.num_kv_heads]
    parts = qkv.view(qkv.shape[0], -1, shape.head_dim).split(sizes, dim=1)
    return Heads(*(part.contiguous() if copied else part for part in parts))
