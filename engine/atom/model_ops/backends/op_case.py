"""OpCase: the features that an engine needs of its operations, by which a backend is chosen."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import torch

from atom.lora_config import LoraConfig
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


class LoraMatrices(enum.Enum):
    """The matrices of which rows of a step may have adapters."""

    NONE = enum.auto()
    DENSE = enum.auto()  # all but experts'
    EXPERTS_TOO = enum.auto()

    @classmethod
    def of(cls, config: LoraConfig | None) -> LoraMatrices:
        """Return the matrices of an engine's adapters; None is an engine without them."""
        if config is None:
            return cls.NONE
        return cls.EXPERTS_TOO if config.experts else cls.DENSE


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsCase:
    """The features of experts: formats of their matrices, rules of routers, inputs and inner size
    of each kind. fp4_inputs: whether they are for inputs of MXFP4; partial: whether ranks hold
    whole experts, each some of them."""

    formats: tuple[WeightFormat, ...] = ()
    routings: tuple[Routing, ...] = ()
    sizes: tuple[tuple[int, int], ...] = ()
    fp4_inputs: bool = False
    partial: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OpCase:
    """The features that an engine needs of its operations: dtypes of the model and of its KV cache;
    shapes of attention layers, of those with a latent, entries or a state, and of indexers; tokens
    per block; formats of matrices but experts'; activations. wide_norms: whether norms' weights are
    float32 in a model that is not; drafts: whether rows carry drafts; lora: the matrices of which
    rows may have adapters."""

    dtype: torch.dtype
    kv_dtype: torch.dtype
    attention: tuple[AttentionShape, ...] = ()
    latent: tuple[LatentShape, ...] = ()
    compressed: tuple[CompressedShape, ...] = ()
    states: tuple[StateShape, ...] = ()
    index: tuple[IndexShape, ...] = ()
    block_size: int = 16
    formats: tuple[WeightFormat, ...] = (WeightFormat.PLAIN,)
    experts: ExpertsCase = ExpertsCase()
    activations: tuple[Gating, ...] = (Activation.SILU,)
    wide_norms: bool = False
    drafts: bool = False
    lora: LoraMatrices = LoraMatrices.NONE

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
            return self.lora is LoraMatrices.EXPERTS_TOO and bool(self.experts.routings)
        if op in LORA_OPS:
            return self.lora is not LoraMatrices.NONE
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
            return bool(self.experts.routings)
        return self.asks_for(op)
