"""The rope's settings of a decoder's layers, from config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from atom.config import ModelConfig
from atom.model_ops.rotary_embedding import RopeConfig, RopeLimits, rope_config
from atom.models.decoder.spec import LayerSpec, ModelSpec
from atom.sizing.attention.kinds import StateAttention
from atom.sizing.mask_rule import CAUSAL


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
