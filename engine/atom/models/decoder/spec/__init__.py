"""ModelSpec: all settings of a decoder, layer by layer, read once from config.json.

Sizes come from atom.sizing (ModelFacts: heads, windows, biases, matrices). This module has the
settings that do not change a size: scales, ropes, activations, epsilons. A family's file changes
the settings in which its models differ (`replace`).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch

from atom.model_ops.activations import Gating
from atom.model_ops.backends.op_case import ExpertsCase, LayerShapes, OpCase
from atom.model_ops.compressed_attention import CompressedShape
from atom.model_ops.index_values import IndexShape, SpanIndexShape
from atom.model_ops.moe.correction_bias import Correction
from atom.model_ops.quantised.stored_matrix import format_of
from atom.model_ops.rotary_embedding import RopeConfig
from atom.model_ops.routing import Routing
from atom.model_ops.values import AttentionShape, LatentShape, WeightFormat
from atom.models.decoder.fallback.attention_call import FallbackSpec
from atom.models.vision.encoder import VisionSpec
from atom.pooling_config import TokenPooling
from atom.sizing.layers import EncoderFacts, LayerFacts, Stacking
from atom.sizing.projection import Projection
from atom.sizing.states import StateShape

# Heads of a layer's attention, of whichever kind it is.
Shape = AttentionShape | LatentShape | CompressedShape | StateShape


@dataclass(frozen=True, slots=True, kw_only=True)
class NormSpec:
    """The settings of a norm; `unit_offset`: see RMSNorm."""

    eps: float
    unit_offset: bool = False


class NormPlacement(enum.Enum):
    """The places of norms around a layer's attention and MLP."""

    BEFORE = enum.auto()
    AROUND = enum.auto()  # and one after (Gemma 2 and 3)
    BEHIND = enum.auto()  # and none before (OLMo 2 and 3, EXAONE 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsSpec:
    """The settings of a layer's experts, besides their sizes. stacking: of their checkpoint;
    correction: of the router's balance, if there is one; vocab_size: tokens in the table that
    selects experts, 0 if a router selects them."""

    routing: Routing
    stacking: Stacking = Stacking.APART
    correction: Correction | None = None
    vocab_size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsSpec:
    """The mixing of `count` residual streams by hyper-connections. iterations: of the mixing's
    normalisation; eps: added to shares and sums, norm_eps: of the norm before."""

    count: int
    iterations: int
    eps: float
    norm_eps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpec:
    """The settings of a decoder layer. matrices: of its attention, by the module's name below the
    layer, as in a checkpoint; mlp: those of its MLP, or of its router, experts and shared experts;
    rope: of whole heads, in latent attention of their rotated parts; index: of the indexer that
    selects the tokens to attend to; norms: where attention and MLP have one; head_norm: of each
    head of queries and keys, without a weight; residual_scale: multiplies the results of attention
    and MLP; value_scale: multiplies values; streams: of its residual, None for one stream; others:
    matrices of an MLP beside the experts, and of the layer's own inputs, by the module's name."""

    facts: LayerFacts
    matrices: Mapping[str, Projection]
    mlp: tuple[Projection, ...]
    attention: Shape
    rope: RopeConfig
    activation: Gating
    norm: NormSpec
    experts: ExpertsSpec | None = None
    index: IndexShape | SpanIndexShape | None = None
    norms: NormPlacement = NormPlacement.BEFORE
    head_norm: NormSpec | None = None
    residual_scale: float = 1.0
    value_scale: float = 1.0
    streams: StreamsSpec | None = None
    others: Mapping[str, Projection] = field(default_factory=dict)

    @property
    def own_matrices(self) -> dict[str, Projection]:
        """Return the attention's matrices by their names below that module."""
        return {name.partition(".")[2]: matrix for name, matrix in self.matrices.items()}


@dataclass(frozen=True, slots=True)
class PerLayerInputsSpec:
    """The size of an embedding with an input of `size` for each token and layer. image_id: the
    token whose inputs the tokens of images get."""

    vocab_size: int
    layers: int
    size: int
    image_id: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadSpec:
    """The modules of a head of labels, by their names below the model. dense: a square matrix;
    activation: after it; norm: after that, "" without one; labels: the last matrix; bias: of the
    first one."""

    dense: str
    labels: str
    activation: str = "tanh"
    norm: str = ""
    bias: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderSpec:
    """The settings of an encoder.

    - `activation`: of its MLPs; `eps`, `norm_bias`: of every LayerNorm.
    - `norms_sums`: a norm follows each sum (BERT), else it precedes attention and MLP (ModernBERT).
    - `pooled`: the tokens whose states make a prompt's vector; `head`: makes a score of it.
    - `unused`: name prefixes of tensors that a checkpoint may have beside.
    """

    facts: EncoderFacts
    activation: str
    eps: float
    norms_sums: bool
    norm_bias: bool
    pooled: TokenPooling
    head: HeadSpec | None = None
    unused: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """The settings of a model of decoder layers. embedding_scale: multiplies embeddings;
    logits_softcap: bounds the logits; logits_scale: multiplies the hidden states of the logits;
    max_position: one more than the last computed position; mtp_layers: layers that a checkpoint may
    have after the model's, for speculation alone; mtp_prefix: the prefix of their names, "" if
    their numbers continue the model's; aux_layers: layers whose inputs are auxiliary hidden states,
    with the last norm's input as the one after all layers; per_layer_inputs: embeddings that are
    inputs of each layer; vision: the encoder of images, None for a model of text; body: a text
    encoder, or a class of transformers, in place of our decoder; None for that."""

    hidden_size: int
    vocab_size: int
    max_position: int
    tie_word_embeddings: bool
    norm: NormSpec
    layers: tuple[LayerSpec, ...]
    embedding_scale: float | None = None
    logits_softcap: float | None = None
    logits_scale: float = 1.0
    mtp_layers: tuple[LayerSpec, ...] = ()
    mtp_prefix: str = ""
    aux_layers: tuple[int, ...] = ()
    per_layer_inputs: PerLayerInputsSpec | None = None
    vision: VisionSpec | None = None
    body: EncoderSpec | FallbackSpec | None = None

    @property
    def encoder(self) -> EncoderSpec | None:
        """Return the settings of a text encoder, None for a decoder."""
        return self.body if isinstance(self.body, EncoderSpec) else None

    @property
    def fallback(self) -> FallbackSpec | None:
        """Return the class of transformers that computes the model, None for a family here."""
        return self.body if isinstance(self.body, FallbackSpec) else None

    def on_rank(self, ranks: int) -> ModelSpec:
        """Return the spec of one of `ranks` ranks, with its share of the heads. Matrices stay whole
        here; layers take their region of them."""
        if ranks == 1:
            return self
        return self.with_layers(
            lambda layer: replace(
                layer,
                attention=_share_of_heads(layer.attention, ranks),
                index=_share_of_index(layer.index, ranks),
            )
        )

    def with_layers(self, change: Callable[[LayerSpec], LayerSpec]) -> ModelSpec:
        """Return the model with each of its layers changed, including the draft layers."""
        return replace(
            self,
            layers=tuple(change(layer) for layer in self.layers),
            mtp_layers=tuple(change(layer) for layer in self.mtp_layers),
        )

    def with_all_layers(self, *others: LayerSpec) -> ModelSpec:
        """Return the model with these layers added, for the choice of operations."""
        return replace(self, layers=(*self.layers, *others))

    def op_case(self, dtype: torch.dtype, kv_dtype: torch.dtype, block_size: int) -> OpCase:
        """Return the features that this model needs of its operations."""
        return OpCase(
            dtype=dtype,
            kv_dtype=kv_dtype,
            layers=LayerShapes.of(
                (layer.attention for layer in self.layers),
                (layer.index for layer in self.layers if layer.index),
            ),
            block_size=block_size,
            formats=self._formats(lambda matrix: matrix.copies == 1, WeightFormat.PLAIN),
            experts=self._experts_case(),
            activations=self._activations(),
            wide_norms=dtype is not torch.float32
            and any(spec.unit_offset for spec in (self.norm, *(each.norm for each in self.layers))),
        )

    def _activations(self) -> tuple[Gating, ...]:
        """Return the activations that operations compute: encoders and transformers' classes
        compute their own."""
        if self.body is not None:
            return ()
        return tuple(dict.fromkeys(layer.activation for layer in self.layers))

    def _experts_case(self) -> ExpertsCase:
        routings = (layer.experts.routing for layer in self.layers if layer.experts)
        return ExpertsCase(
            formats=self._formats(lambda matrix: matrix.copies > 1),
            routings=tuple(dict.fromkeys(routings)),
            sizes=self._expert_sizes(),
            fp4_inputs=self._experts_have_fp4_inputs(),
        )

    def _expert_sizes(self) -> tuple[tuple[int, int], ...]:
        """Return the inputs and inner size of each kind of experts: its gate's columns and rows."""
        gates = (layer.mlp[1] for layer in self.layers if layer.experts)
        return tuple(dict.fromkeys((gate.columns, gate.rows) for gate in gates))

    def _experts_have_fp4_inputs(self) -> bool:
        experts = (matrix for layer in self.layers for matrix in layer.mlp if matrix.copies > 1)
        return all(
            matrix.quantization is not None and matrix.quantization.input_bits == 4
            for matrix in experts
        )

    def _formats(
        self, wanted: Callable[[Projection], bool], *others: WeightFormat
    ) -> tuple[WeightFormat, ...]:
        """List the formats of the layers' matrices that are wanted, and the others (the head is
        always plain)."""
        matrices = (
            matrix
            for layer in self.layers
            for matrix in (*layer.matrices.values(), *layer.mlp, *layer.others.values())
        )
        found = [format_of(matrix.quantization) for matrix in matrices if wanted(matrix)]
        return tuple(dict.fromkeys((*others, *found)))


def _share_of_heads(shape: Shape, ranks: int) -> Shape:
    """Divide the heads over ranks; KV heads that are fewer than the ranks are on several."""
    if isinstance(shape, StateShape):
        return shape.on_rank(ranks)
    heads = shape.num_heads // ranks
    if isinstance(shape, LatentShape | CompressedShape):
        return replace(shape, num_heads=heads)
    return replace(shape, num_heads=heads, num_kv_heads=max(1, shape.num_kv_heads // ranks))


def _share_of_index(
    index: IndexShape | SpanIndexShape | None, ranks: int
) -> IndexShape | SpanIndexShape | None:
    """Divide an indexer's heads as KV heads are, if each selects for one of these."""
    if isinstance(index, SpanIndexShape):
        return replace(index, num_heads=max(1, index.num_heads // ranks))
    return index
