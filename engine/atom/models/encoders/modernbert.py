"""ModernBERT (Warner et al. 2024): rotary positions, norms before attention and MLP, gated MLPs,
and windows around each token in most layers, which rotate by a base of their own."""

from __future__ import annotations

from dataclasses import replace

from atom.config import ModelConfig
from atom.model_ops.rotary_embedding import rope_config
from atom.models.decoder.spec import EncoderSpec, HeadSpec, LayerSpec, ModelSpec
from atom.models.decoder.spec.rope_settings import rope_limits
from atom.models.encoders.build_spec import (
    encoder_spec,
    facts_of,
    pooled_tokens,
    with_window,
)
from atom.sizing.families.encoders import sees_window

_WINDOW = 128  # tokens on both sides together
_THETA = {"full_attention": 160_000.0, "sliding_attention": 10_000.0}
_OWN_THETA = {"full_attention": "global_rope_theta", "sliding_attention": "local_rope_theta"}
_UNUSED = ("decoder.", "head.")  # of the model that predicts masked words


def spec(config: ModelConfig) -> ModelSpec:
    """Build a ModernBERT's spec from config.json. Raises `ModelError` for an unknown rope."""
    raw, facts = config.hf_config, facts_of(config)
    around = int(raw.get("local_attention", _WINDOW)) // 2

    def placed(layer: LayerSpec, index: int) -> LayerSpec:
        local = sees_window(raw, index)
        kind = "sliding_attention" if local else "full_attention"
        said = {
            "rope_theta": raw.get(_OWN_THETA[kind], _THETA[kind]),
            **(raw.get("rope_scaling") or {}),
            **((raw.get("rope_parameters") or {}).get(kind) or {}),
        }
        rope = rope_config(said, layer.facts.attention.head_dim, rope_limits(config))
        layer = replace(layer, rope=rope)
        return with_window(layer, around) if local else layer

    head = HeadSpec(
        dense="head.dense",
        labels="classifier",
        activation=str(raw.get("classifier_activation", "gelu")),
        norm="head.norm",
        bias=bool(raw.get("classifier_bias", False)),
    )
    encoder = EncoderSpec(
        facts=facts,
        activation=config.facts.hidden_act,
        eps=float(raw.get("norm_eps", 1e-5)),
        norms_sums=False,
        norm_bias=bool(raw.get("norm_bias", False)),
        pooled=pooled_tokens(config),
        head=None if facts.head is None else head,
        unused=() if facts.head is not None else _UNUSED,
    )
    return encoder_spec(config, encoder, placed)
