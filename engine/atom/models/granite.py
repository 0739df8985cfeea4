"""Granite 3 (IBM, 2024): Llama's decoder with a scale for the embedding, for the scores, for what
attention and MLP add, and for the logits."""

from __future__ import annotations

from dataclasses import replace

from atom.config import ModelConfig
from atom.model_ops.values import AttentionShape
from atom.models.decoder.spec import LayerSpec, ModelSpec, decoder_spec


def spec(config: ModelConfig) -> ModelSpec:
    """Return what config.json says of a Granite. Raises `ModelError` as `decoder_spec` does."""
    raw = config.hf_config
    scores = float(raw.get("attention_multiplier", 1.0))
    added = float(raw.get("residual_multiplier", 1.0))

    def scaled(layer: LayerSpec) -> LayerSpec:
        assert isinstance(layer.attention, AttentionShape)
        shape = replace(layer.attention, scale=scores)
        return replace(layer, attention=shape, residual_scale=added)

    return replace(
        decoder_spec(config).with_layers(scaled),
        embedding_scale=float(raw.get("embedding_multiplier", 1.0)),
        logits_scale=1.0 / float(raw.get("logits_scaling", 1.0)),
    )
