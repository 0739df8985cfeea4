"""Llama 4 (Meta, 2025), text: most layers rotate queries and keys, norm them without a weight and
attend within chunks; the others have no positions and attend to all tokens. Experts get their input
scaled by the router's weight, and all tokens share one expert."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from atom.config import ModelConfig
from atom.errors import ModelError
from atom.model_ops.rotary_embedding import RopeConfig, Temperature
from atom.model_ops.routing import Routing, Scoring
from atom.model_ops.values import AttentionShape
from atom.models.decoder.spec import LayerSpec, ModelSpec, NormSpec
from atom.models.decoder.spec.decoder_spec import decoder_spec
from atom.sizing.families.reading import ropes

_EPSILON, _THETA = 1e-5, 500_000.0
_FLOOR, _SCALE = 8192, 0.1  # of the temperature, if config.json has no value


def spec(config: ModelConfig) -> ModelSpec:
    """Build a Llama 4's spec from config.json. Raises `ModelError` as `decoder_spec` does."""
    raw = {"rms_norm_eps": _EPSILON, "rope_theta": _THETA, **config.hf_config}
    plain = decoder_spec(
        replace(config, hf_config=raw),
        lambda experts: Routing(
            top_k=experts.per_token, scoring=Scoring.SIGMOID, weighs_inputs=True
        ),
    )
    return replace(
        plain,
        layers=tuple(
            _layer(raw, layer, index, plain.max_position)
            for index, layer in enumerate(plain.layers)
        ),
    )


def _layer(raw: Mapping[str, Any], layer: LayerSpec, index: int, longest: int) -> LayerSpec:
    assert isinstance(layer.attention, AttentionShape)
    shape = layer.attention
    layer = replace(layer, attention=replace(shape, mask=shape.mask.within(longest)))
    if not ropes(raw, index):
        return replace(layer, rope=_still(raw, layer.rope))
    norm = NormSpec(eps=layer.norm.eps) if _said(raw, "use_qk_norm", True) else None
    if norm is not None and layer.rope.attention_factor != 1.0:
        # The norm is after the rope in the model, and before it in the kernels: the same, as
        # long as a rotation keeps a head's length.
        raise ModelError(
            "config.json: a rope that scales attention is not supported together with use_qk_norm"
        )
    return replace(layer, rope=replace(layer.rope, interleaved=True), head_norm=norm)


def _still(raw: Mapping[str, Any], rope: RopeConfig) -> RopeConfig:
    """Build the rope of a layer without positions, which may still scale queries by their
    position."""
    temperature = None
    if _said(raw, "attn_temperature_tuning", True):
        floor, scale = _said(raw, "floor_scale", _FLOOR), _said(raw, "attn_scale", _SCALE)
        temperature = Temperature(float(floor), float(scale))
    return RopeConfig(rope.head_dim, 0, rope.theta, temperature=temperature)


def _said(raw: Mapping[str, Any], key: str, default: Any) -> Any:
    """Return a value of config.json; the default if the key is null or absent."""
    value = raw.get(key)
    return default if value is None else value
