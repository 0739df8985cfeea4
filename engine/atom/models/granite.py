"""Granite 3 and 4 (IBM, 2024 and 2025): Llama's decoder with scales for the embedding, the scores,
the results of attention and MLP, and the logits. In Granite 4's hybrids most layers have Mamba-2
mixers, and many have experts."""

from __future__ import annotations

from dataclasses import replace

from atom.config import ModelConfig
from atom.model_ops.routing import Routing
from atom.model_ops.values import AttentionShape
from atom.models.decoder.spec import LayerSpec, ModelSpec
from atom.models.decoder.spec.decoder_spec import decoder_spec
from atom.models.decoder.spec.rope_settings import without_positions


def spec(config: ModelConfig) -> ModelSpec:
    """Build a Granite's spec from config.json. Raises `ModelError` as `decoder_spec` does."""
    raw = config.hf_config
    scores = float(raw.get("attention_multiplier", 1.0))
    added = float(raw.get("residual_multiplier", 1.0))

    def scaled(layer: LayerSpec) -> LayerSpec:
        if isinstance(layer.attention, AttentionShape):
            layer = replace(layer, attention=replace(layer.attention, scale=scores))
        return replace(layer, residual_scale=added)

    plain = decoder_spec(config, lambda experts: Routing(top_k=experts.per_token, renormalize=True))
    return replace(
        without_positions(plain.with_layers(scaled)),
        embedding_scale=float(raw.get("embedding_multiplier", 1.0)),
        logits_scale=1.0 / float(raw.get("logits_scaling", 1.0)),
    )
