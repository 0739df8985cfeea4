"""ModelSpec: all settings of a decoder, layer by layer, read once from config.json.

Sizes come from atom.sizing (ModelFacts: heads, windows, biases, matrices). This module has the
settings that do not change a size: scales, ropes, activations, epsilons. A family's file changes
the settings in which its models differ (`replace`).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, assert_never

import torch

from atom.config import ModelConfig
from atom.errors import ModelError
from atom.model_ops.activations import Activation, Gating
from atom.model_ops.backends.op_case import ExpertsCase, LayerShapes, OpCase
from atom.model_ops.compressed_attention import CompressedShape
from atom.model_ops.moe.correction_bias import Correction
from atom.model_ops.quantised.stored_matrix import format_of
from atom.model_ops.rotary_embedding import RopeConfig, RopeLimits, rope_config
from atom.model_ops.routing import Routing
from atom.model_ops.values import (
    AttentionShape,
    IndexShape,
    LatentShape,
    SpanIndexShape,
    WeightFormat,
)
from atom.models.decoder.fallback.attention_call import FallbackSpec
from atom.models.vision.encoder import VisionSpec
from atom.pooling_config import TokenPooling
from atom.sizing.attention.kinds import (
    EntriesAttention,
    GroupedAttention,
    LatentAttention,
    SharedKvAttention,
    StateAttention,
)
from atom.sizing.layers import PLAIN_BLOCK, EncoderFacts, Experts, LayerFacts, Stacking
from atom.sizing.mask_rule import CAUSAL
from atom.sizing.model_facts import ModelFacts
from atom.sizing.projection import Projection
from atom.sizing.states import StateShape
from atom.sizing.vision.qwen3_vl import QwenVisionFacts
from atom.sizing.weights import ATTENTION_MODULES, PER_LAYER_INPUT, stored_projections

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


def decoder_spec(
    config: ModelConfig, routing: Callable[[Experts], Routing] | None = None
) -> ModelSpec:
    """Build a model's spec from config.json, for a decoder with Llama's layers. routing: returns
    the routing of a layer with experts. Raises `ModelError` on a field whose meaning this version
    does not compute."""
    facts, raw = config.facts, config.hf_config
    norm = NormSpec(eps=float(raw.get("rms_norm_eps", 1e-6)))
    activation = _activation(facts.hidden_act)
    kinds = (each.attention for each in facts.layers)
    first = next(each for each in kinds if not isinstance(each, StateAttention))
    rope = rope_config(rope_parameters(raw), first.rope_dim, rope_limits(config))
    if isinstance(facts.vision, QwenVisionFacts):
        rope = replace(rope, sections=_sections(rope_parameters(raw), facts.vision.sections))
    layers = [
        LayerSpec(
            facts=layer,
            matrices={matrix.name: matrix for matrix in matrices if _is_attention(matrix)},
            mlp=tuple([matrix for matrix in matrices if _is_mlp(layer, matrix)]),
            others={matrix.name: matrix for matrix in matrices if _is_other(layer, matrix)},
            attention=_shape(layer),
            rope=rope,
            activation=activation,
            norm=norm,
            experts=_experts(layer, facts, routing),
        )
        for layer, matrices in (
            (layer, tuple(stored_projections(facts, layer)))
            for layer in (*facts.layers, *facts.mtp_layers)
        )
    ]
    return ModelSpec(
        hidden_size=facts.hidden_size,
        vocab_size=facts.vocab_size,
        max_position=config.max_model_len,
        tie_word_embeddings=facts.tie_word_embeddings,
        norm=norm,
        layers=tuple(layers[: facts.num_layers]),
        mtp_layers=tuple(layers[facts.num_layers :]),
        mtp_prefix=facts.checkpoint.mtp_prefix,
        vision=_vision(config),
    )


def _sections(parameters: Mapping[str, Any], default: tuple[int, int, int]) -> tuple[int, int, int]:
    """Return the pairs of a head that rotate by time, height and width."""
    given = parameters.get("mrope_section") or default
    counted = isinstance(given, (list, tuple)) and all(isinstance(each, int) for each in given)
    if not counted or len(given) != 3 or min(given) < 0:
        raise ModelError(
            f"config.json: mrope_section is {given!r}; it must be three numbers of pairs"
        )
    return tuple(given)


def _vision(config: ModelConfig) -> VisionSpec | None:
    vision = config.facts.vision
    if vision is None:
        return None
    return VisionSpec(vision, vision.kept_tokens(config.max_model_len))


def without_positions(spec: ModelSpec) -> ModelSpec:
    """Remove the rotation from the layers whose facts have no positions. Layers that keep states
    get the rope of the attending ones, so that no table is made for them."""
    kinds = [each.facts.attention for each in spec.layers]
    some_turn = any(each.rope.turns for each in kinds if not isinstance(each, StateAttention))

    def placed(layer: LayerSpec) -> LayerSpec:
        attention = layer.facts.attention
        if some_turn if isinstance(attention, StateAttention) else attention.rope.turns:
            return layer
        return replace(layer, rope=RopeConfig(layer.rope.head_dim, 0, layer.rope.theta))

    return spec.with_layers(placed)


def rope_parameters(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rope's parameters in either spelling of config.json: rope_parameters (transformers
    5), or rope_theta and rope_scaling. `rope_by_kind` reads those by kind of layer."""
    said = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    found = {key: value for key, value in said.items() if not isinstance(value, Mapping)}
    found.setdefault("rope_theta", raw.get("rope_theta") or 10000.0)
    if "partial_rotary_factor" in raw:
        found.setdefault("partial_rotary_factor", raw["partial_rotary_factor"])
    return found


def rope_by_kind(
    config: ModelConfig, layer: LayerSpec, plain: Mapping[str, Mapping[str, Any]]
) -> RopeConfig:
    """Return the rope of a layer in a model whose windowed layers have another one than the rest.
    plain: parameters of each kind, which rope_parameters overrides."""
    attention = layer.facts.attention
    kind = "full_attention" if attention.mask == CAUSAL else "sliding_attention"
    said = (config.hf_config.get("rope_parameters") or {}).get(kind) or {}
    return rope_config({**plain[kind], **said}, attention.head_dim, rope_limits(config))


def rope_limits(config: ModelConfig) -> RopeLimits:
    """Return the lengths that kinds of rope refer to."""
    original = config.hf_config.get("original_max_position_embeddings")
    return RopeLimits(
        max_position=config.facts.max_position_embeddings,
        original=None if original is None else int(original),
        longest=config.max_model_len,
    )


def _is_attention(matrix: Projection) -> bool:
    return matrix.name.startswith(ATTENTION_MODULES)


def _is_mlp(layer: LayerFacts, matrix: Projection) -> bool:
    return not _is_attention(matrix) and not _is_other(layer, matrix)


def _is_other(layer: LayerFacts, matrix: Projection) -> bool:
    beside = layer.mlp.is_beside and matrix.name.startswith(f"{PLAIN_BLOCK.dense}.")
    return beside or matrix.name.startswith(PER_LAYER_INPUT)


def _experts(
    layer: LayerFacts, facts: ModelFacts, routing: Callable[[Experts], Routing] | None
) -> ExpertsSpec | None:
    experts, block = layer.mlp.experts, facts.experts_block
    if experts is None:
        return None
    assert routing is not None, "a family with experts says how they are chosen"
    rule = routing(experts)
    _check_routing(rule, experts)
    correction = Correction(block.correction_name, in_row=block.correction_in_row)
    return ExpertsSpec(
        routing=rule,
        stacking=block.stacking,
        correction=correction if experts.router_correction else None,
        vocab_size=facts.vocab_size if experts.by_token else 0,
    )


def _check_routing(rule: Routing, experts: Experts) -> None:
    if experts.count % rule.groups:
        raise ModelError(
            f"config.json: n_group {rule.groups} does not divide the {experts.count} experts"
        )
    choosable = experts.count // rule.groups * min(rule.groups_kept, rule.groups)
    if rule.top_k > choosable:
        raise ModelError(
            f"config.json: num_experts_per_tok {rule.top_k} is more than the {choosable} experts "
            "that a token may choose from"
        )


def _shape(layer: LayerFacts) -> Shape:
    attention = layer.attention
    match attention:
        case StateAttention():
            return attention.net.shape
        case LatentAttention(latent=latent):
            return LatentShape(
                num_heads=attention.num_heads,
                nope_dim=latent.nope_dim,
                rope_dim=latent.rope_dim,
                kv_rank=latent.kv_rank,
                value_dim=latent.value_dim,
                scale=attention.head_dim**-0.5,
            )
        case EntriesAttention():
            return _compressed_shape(attention)
        case GroupedAttention() | SharedKvAttention():
            return AttentionShape(
                num_heads=attention.num_heads,
                num_kv_heads=attention.num_kv_heads,
                head_dim=attention.head_dim,
                scale=attention.head_dim**-0.5,
                mask=attention.mask,
                has_sinks=isinstance(attention, GroupedAttention) and attention.softmax.sinks,
            )
        case _:
            assert_never(attention)


def _compressed_shape(attention: EntriesAttention) -> CompressedShape:
    net, index = attention.compressed, None
    if net.index is not None:
        index = IndexShape(net.index.heads, net.index.dim, net.rope_dim, net.index.top_k)
    return CompressedShape(
        num_heads=attention.num_heads,
        head_dim=attention.head_dim,
        rope_dim=net.rope_dim,
        scale=attention.head_dim**-0.5,
        mask=attention.mask,
        rate=net.rate,
        index=index,
    )


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


def _activation(name: str) -> Activation:
    try:
        return Activation(name)
    except ValueError:
        known = ", ".join(kind.value for kind in Activation)
        raise ModelError(
            f"config.json: activation {name!r} is not supported; known: {known}"
        ) from None
