"""OpCase: the features that an engine needs of its operations, by which a backend is chosen."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from atom.lora_config import LoraConfig
from atom.model_ops.activations import Activation, Gating
from atom.model_ops.backends.op_names import (
    COMPRESSED_OPS,
    DRAFT_OPS,
    EXPERTS_OPS,
    HEADS_OPS,
    IMAGE_OPS,
    LORA_OPS,
    MLA_OPS,
    SHARD_OPS,
    SPAN_OPS,
    SPARSE_OPS,
    STATE_OPS,
)
from atom.model_ops.compressed_attention import CompressedShape
from atom.model_ops.index_values import IndexShape, SpanIndexShape
from atom.model_ops.routing import Routing
from atom.model_ops.values import AttentionShape, LatentShape, WeightFormat
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
class LayerShapes:
    """The shapes of layers with a cache: of attention over keys and values, over a latent, over
    compressed entries; of states; and of the indexers of sparse attention, to tokens and to
    spans of them."""

    attention: tuple[AttentionShape, ...] = ()
    latent: tuple[LatentShape, ...] = ()
    compressed: tuple[CompressedShape, ...] = ()
    states: tuple[StateShape, ...] = ()
    index: tuple[IndexShape, ...] = ()
    spans: tuple[SpanIndexShape, ...] = ()

    @classmethod
    def of(
        cls, shapes: Iterable[object], indexers: Iterable[IndexShape | SpanIndexShape]
    ) -> LayerShapes:
        """Sort the shapes of a model's layers by their kind, each once."""
        found, index = dict.fromkeys(shapes), dict.fromkeys(indexers)
        return cls(
            attention=tuple(shape for shape in found if isinstance(shape, AttentionShape)),
            latent=tuple(shape for shape in found if isinstance(shape, LatentShape)),
            compressed=tuple(shape for shape in found if isinstance(shape, CompressedShape)),
            states=tuple(shape for shape in found if isinstance(shape, StateShape)),
            index=tuple(shape for shape in index if isinstance(shape, IndexShape)),
            spans=tuple(shape for shape in index if isinstance(shape, SpanIndexShape)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OpCase:
    """The features that an engine needs of its operations: dtypes of the model and of its KV cache;
    shapes of layers with a cache; tokens per block; formats of matrices but experts'; activations.
    wide_norms: whether norms' weights are float32 in a model that is not; drafts: whether rows
    carry drafts; lora: the matrices of which rows may have adapters."""

    dtype: torch.dtype
    kv_dtype: torch.dtype
    layers: LayerShapes = LayerShapes()
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
        if op in IMAGE_OPS:
            return False
        if op in DRAFT_OPS:
            return self.drafts
        if op in STATE_OPS:
            return any(isinstance(state, STATE_OPS[op]) for state in self.layers.states)
        if op in COMPRESSED_OPS:
            return bool(self.layers.compressed)
        if op in SPAN_OPS:
            return bool(self.layers.spans)
        if op == "expert_products":
            return self.lora is LoraMatrices.EXPERTS_TOO and bool(self.experts.routings)
        if op in LORA_OPS:
            return self.lora is not LoraMatrices.NONE
        return op not in SPARSE_OPS or bool(self.layers.index)

    def needs(self, op: str) -> bool:
        """Return whether a step of reproducible runs may compute the operation at all, as far as
        the model decides, too."""
        if op in SHARD_OPS:
            return False
        if op in HEADS_OPS:
            return bool(self.layers.attention)
        if op in MLA_OPS:
            return bool(self.layers.latent)
        if op in EXPERTS_OPS:
            return bool(self.experts.routings)
        return self.asks_for(op)
