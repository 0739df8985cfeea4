"""Mixtral (Jiang et al. 2024): Mistral's decoder with a few large experts in every layer, whose
weights are a softmax over the chosen experts."""

from __future__ import annotations

from dataclasses import replace

from atom.config import ModelConfig
from atom.model_ops.routing import Routing
from atom.models.decoder.spec import ModelSpec
from atom.models.decoder.spec.decoder_spec import decoder_spec

_THETA = 1_000_000.0  # if config.json has no value


def spec(config: ModelConfig) -> ModelSpec:
    """Build a Mixtral's spec from config.json. Raises `ModelError` as `decoder_spec` does."""
    raw = {"rope_theta": _THETA, **config.hf_config}
    return decoder_spec(
        replace(config, hf_config=raw),
        lambda experts: Routing(top_k=experts.per_token, renormalize=True),
    )
