"""Builds the spec of a decoder with Llama's layers from config.json and its sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, assert_never

from atom.config import ModelConfig
from atom.errors import ModelError
from atom.model_ops.activations import Activation
from atom.model_ops.compressed_attention import CompressedShape
from atom.model_ops.index_values import IndexShape
from atom.model_ops.moe.correction_bias import Correction
from atom.model_ops.rotary_embedding import rope_config
from atom.model_ops.routing import Routing
from atom.model_ops.values import AttentionShape, LatentShape
from atom.models.decoder.spec import ExpertsSpec, LayerSpec, ModelSpec, NormSpec, Shape
from atom.models.decoder.spec.rope_settings import rope_limits, rope_parameters
from atom.models.vision.encoder import VisionSpec
from atom.sizing.attention.kinds import (
    EntriesAttention,
    GroupedAttention,
    LatentAttention,
    SharedKvAttention,
    StateAttention,
)
from atom.sizing.layers import PLAIN_BLOCK, Experts, LayerFacts
from atom.sizing.model_facts import ModelFacts
from atom.sizing.projection import Projection
from atom.sizing.vision.qwen3_vl import QwenVisionFacts
from atom.sizing.weights.layer_matrices import (
    ATTENTION_MODULES,
    PER_LAYER_INPUT,
    stored_projections,
)


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


def _activation(name: str) -> Activation:
    try:
        return Activation(name)
    except ValueError:
        known = ", ".join(kind.value for kind in Activation)
        raise ModelError(
            f"config.json: activation {name!r} is not supported; known: {known}"
        ) from None
