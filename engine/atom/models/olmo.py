"""OLMo 3 (Allen Institute for AI, 2025): norms behind attention and MLP, and over all heads of
queries and of keys; windows in three layers of four, whose rope is never stretched."""

from __future__ import annotations

from dataclasses import replace

from atom.config import ModelConfig
from atom.model_ops.rotary_embedding import RopeConfig, rope_config
from atom.models.decoder.spec import LayerSpec, ModelSpec, NormPlacement, decoder_spec, rope_limits
from atom.sizing.mask_rule import CAUSAL

_EPSILON, _THETA = 1e-5, 500_000.0  # where config.json does not say


def spec(config: ModelConfig) -> ModelSpec:
    """Return what config.json says of an OLMo 3. Raises `ModelError` as `decoder_spec` does."""
    plain_ropes = {"rope_parameters": None, "rope_scaling": None}
    raw = {"rms_norm_eps": _EPSILON, **config.hf_config, **plain_ropes}
    plain = decoder_spec(replace(config, hf_config=raw))
    return plain.with_layers(
        lambda layer: replace(layer, norms=NormPlacement.BEHIND, rope=_rope(config, layer))
    )


def _rope(config: ModelConfig, layer: LayerSpec) -> RopeConfig:
    raw, facts = config.hf_config, layer.facts.attention
    sees_all = facts.mask == CAUSAL
    by_kind = raw.get("rope_parameters") or {}
    parameters = dict(by_kind.get("full_attention" if sees_all else "sliding_attention") or {})
    if sees_all:
        parameters = dict(raw.get("rope_scaling") or {}) | parameters
    parameters.setdefault("rope_theta", raw.get("rope_theta") or _THETA)
    return rope_config(parameters, facts.head_dim, rope_limits(config))
