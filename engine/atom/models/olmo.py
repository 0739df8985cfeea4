"""OLMo 3 (Allen Institute for AI, 2025): norms after attention and MLP, and over all heads of
queries and of keys; windows in three layers of four, whose rope is never stretched."""

from __future__ import annotations

from dataclasses import replace

from atom.config import ModelConfig
from atom.models.decoder.spec import ModelSpec, NormPlacement
from atom.models.decoder.spec.decoder_spec import decoder_spec
from atom.models.decoder.spec.rope_settings import rope_by_kind

_EPSILON, _THETA = 1e-5, 500_000.0  # if config.json has no value


def spec(config: ModelConfig) -> ModelSpec:
    """Build an OLMo 3's spec from config.json. Raises `ModelError` as `decoder_spec` does."""
    raw = {"rms_norm_eps": _EPSILON, **config.hf_config}
    theta = {"rope_theta": raw.get("rope_theta") or _THETA}
    ropes = {
        "full_attention": {**theta, **(raw.get("rope_scaling") or {})},
        "sliding_attention": theta,
    }
    return decoder_spec(replace(config, hf_config=raw)).with_layers(
        lambda layer: replace(
            layer, norms=NormPlacement.BEHIND, rope=rope_by_kind(config, layer, ropes)
        )
    )
