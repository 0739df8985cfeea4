"""OpCase: the features that an engine needs of its operations, by which a backend is chosen."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from atom.model_ops.backends.op_names import (
    COMPRESSED_OPS,
    DRAFT_OPS,
    EXPERTS_OPS,
    HEADS_OPS,
    LORA_OPS,
    MLA_OPS,
    SHARD_OPS,
    SPARSE_OPS,
    STATE_OPS,
)
from atom.model_ops.compressed_attention import CompressedShape
from atom.model_ops.routing import Routing
from atom.model_ops.values import (
    Activation,
    AttentionShape,
    Gating,
    IndexShape,
    LatentShape,
    WeightFormat,
)
from atom.sizing.states import StateShape


@dataclass(frozen=True, slots=True, kw_only=True)
class OpCase:
    """The features that an engine needs of its operations: dtypes of the model and of its KV cache;
    shapes of attention layers, of those with a latent, entries or a state, and of indexers; tokens
    per block; formats of matrices and of experts; activations; rules of routers; inputs and inner
    size of experts. fp4_inputs: whether experts are for inputs of MXFP4; wide_norms: whether norms'
    weights are float32 in a model that is not; drafts: whether rows carry drafts; partial_experts:
    whether ranks hold whole experts; lora: whether rows may have adapters, lora_experts: of experts
    too."""

    dtype: torch.dtype
    kv_dtype: torch.dtype
    attention: tuple[AttentionShape, ...] = ()
    latent: tuple[LatentShape, ...] = ()
    compressed: tuple[CompressedShape, ...] = ()
    states: tuple[StateShape, ...] = ()
    index: tuple[IndexShape, ...] = ()
    block_size: int = 16
    formats: tuple[WeightFormat, ...] = (WeightFormat.PLAIN,)
    expert_formats: tuple[WeightFormat, ...] = ()
    activations: tuple[Gating, ...] = (Activation.SILU,)
    routings: tuple[Routing, ...] = ()
    expert_sizes: tuple[tuple[int, int], ...] = ()
    fp4_inputs: bool = False
    wide_norms: bool = False
    drafts: bool = False
    partial_experts: bool = False
    lora: bool = False
    lora_experts: bool = False

    def asks_for(self, op: str) -> bool:
        """Return whether a step computes the operation at all, as far as attention, drafts
        and adapters decide."""
        if op in DRAFT_OPS:
            return self.drafts
        if op in STATE_OPS:
            return any(isinstance(state, STATE_OPS[op]) for state in self.states)
        if op in COMPRESSED_OPS:
            return bool(self.compressed)
        if op == "expert_products":
            return self.lora_experts and bool(self.routings)
        if op in LORA_OPS:
            return self.lora
        return op not in SPARSE_OPS or bool(self.index)

    def needs(self, op: str) -> bool:
        """Return whether a step of reproducible runs may compute the operation at all, as far as
        the model decides, too."""
        if op in SHARD_OPS:
            return False
        if op in HEADS_OPS:
            return bool(self.attention)
        if op in MLA_OPS:
            return bool(self.latent)
        if op in EXPERTS_OPS:
            return bool(self.routings)
        return self.asks_for(op)
