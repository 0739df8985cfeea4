"""Mixtral (Jiang et al. 2024): Mistral's decoder with a few large experts in every layer, whose
weights are a softmax over those that are chosen."""

from __future__ import annotations

from atom.config import ModelConfig
from atom.model_ops.routing import Routing
from atom.models.decoder.spec import ModelSpec, decoder_spec


def spec(config: ModelConfig) -> ModelSpec:
    """Return what config.json says of a Mixtral. Raises `ModelError` as `decoder_spec` does."""
    return decoder_spec(config, lambda experts: Routing(top_k=experts.per_token, renormalize=True))
