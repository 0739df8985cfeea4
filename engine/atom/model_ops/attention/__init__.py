"""Attention layers: each kind owns the layout of its cache. step_plan.py plans the place of a
step's tokens in the cache, once per step. Layers of linear attention keep a state instead."""

from atom.model_ops.attention.cache_layout import BlockTensor, CacheLayout
from atom.model_ops.attention.cached import CachedAttention, CachedLayer, StateLayer
from atom.model_ops.attention.compressed import CompressedAttention
from atom.model_ops.attention.gqa import Attention
from atom.model_ops.attention.mla import MLAAttention, MLAParts
from atom.model_ops.attention.recurrent_state import (
    ConvState,
    DeltaNetState,
    KimiDeltaState,
    SsdState,
)

__all__ = [
    "Attention",
    "BlockTensor",
    "CacheLayout",
    "CachedAttention",
    "CachedLayer",
    "CompressedAttention",
    "ConvState",
    "DeltaNetState",
    "KimiDeltaState",
    "MLAAttention",
    "MLAParts",
    "SsdState",
    "StateLayer",
]
