"""Gemma 2 and 3 (Gemma team 2024, 2025), text: norms around attention and MLP, whose stored weights
are offsets from 1, a scaled embedding, windows in most layers; soft caps in Gemma 2, and a separate
rope for Gemma 3's windowed layers."""

from __future__ import annotations

from dataclasses import replace

from atom.config import ModelConfig
from atom.model_ops.rotary_embedding import RopeConfig, rope_config
from atom.model_ops.values import AttentionShape
from atom.models.decoder.spec import LayerSpec, ModelSpec, NormPlacement, NormSpec
from atom.models.decoder.spec.decoder_spec import decoder_spec
from atom.models.decoder.spec.rope_settings import rope_by_kind, rope_limits

_QUERY_SCALAR = 256
_THETA = {"full_attention": 1_000_000.0, "sliding_attention": 10_000.0}  # Gemma 3's defaults
# Defaults of classes that bound logits and scores unless config.json states otherwise.
_SOFTCAPS = {"Gemma2ForCausalLM": 30.0}
_SCORE_SOFTCAPS = {"Gemma2ForCausalLM": 50.0}


def spec(config: ModelConfig) -> ModelSpec:
    """Build a Gemma model's spec from config.json. Raises `ModelError` as `decoder_spec` does."""
    raw = config.hf_config
    plain = decoder_spec(config)
    norm = NormSpec(eps=plain.norm.eps, unit_offset=True)
    return replace(
        plain,
        norm=norm,
        layers=tuple(
            replace(
                layer,
                norm=norm,
                norms=NormPlacement.AROUND,
                attention=_shape(config, layer),
                rope=_rope(config, layer),
            )
            for layer in plain.layers
        ),
        embedding_scale=plain.hidden_size**0.5,
        logits_softcap=raw.get("final_logit_softcapping", _SOFTCAPS.get(config.architecture)),
    )


def _shape(config: ModelConfig, layer: LayerSpec) -> AttentionShape:
    raw, vision = config.hf_config, config.facts.vision
    assert isinstance(layer.attention, AttentionShape)
    return replace(
        layer.attention,
        scale=float(raw.get("query_pre_attn_scalar") or _QUERY_SCALAR) ** -0.5,
        softcap=raw.get("attn_logit_softcapping", _SCORE_SOFTCAPS.get(config.architecture)),
        sees_ahead=vision is not None and vision.sees_ahead,
    )


def _rope(config: ModelConfig, layer: LayerSpec) -> RopeConfig:
    raw, facts = config.hf_config, layer.facts.attention
    if config.architecture == "Gemma2ForCausalLM":
        parameters = dict(raw.get("rope_parameters") or raw.get("rope_scaling") or {})
        parameters.setdefault("rope_theta", raw.get("rope_theta") or _THETA["sliding_attention"])
        return rope_config(parameters, facts.head_dim, rope_limits(config))
    theta = raw.get("rope_theta") or _THETA["full_attention"]
    window_theta = raw.get("rope_local_base_freq") or _THETA["sliding_attention"]
    ropes = {
        "full_attention": {"rope_theta": theta, **(raw.get("rope_scaling") or {})},
        "sliding_attention": {"rope_theta": window_theta},
    }
    return rope_by_kind(config, layer, ropes)
