"""LFM2 (Liquid AI, 2025): short convolutions between gates, and attention in a few layers; the
larger model has experts after the first layers."""

from __future__ import annotations

from dataclasses import replace

from atom.config import ModelConfig
from atom.model_ops.routing import Routing, Scoring
from atom.models.decoder.spec import ModelSpec
from atom.models.decoder.spec.decoder_spec import decoder_spec

_THETA = 1_000_000.0  # if config.json has no value


def spec(config: ModelConfig) -> ModelSpec:
    """Build an LFM2's spec from config.json. Raises `ModelError` as `decoder_spec` does."""
    raw = config.hf_config
    own = {"rms_norm_eps": raw.get("norm_eps", 1e-5), "rope_theta": raw.get("rope_theta", _THETA)}
    renormalize = bool(raw.get("norm_topk_prob", True))
    scale = float(raw.get("routed_scaling_factor", 1.0))
    return decoder_spec(
        replace(config, hf_config={**raw, **own}),
        lambda experts: Routing(
            top_k=experts.per_token, scoring=Scoring.SIGMOID, renormalize=renormalize, scale=scale
        ),
    )
