"""MiniMax-M2 (MiniMax, 2025): norms over all heads of queries and of keys, heads that rotate in
part, and in every layer many small experts that corrected sigmoids choose."""

from __future__ import annotations

from dataclasses import replace

from atom.config import ModelConfig
from atom.model_ops.routing import Routing, Scoring
from atom.models.decoder.spec import ModelSpec
from atom.models.decoder.spec.decoder_spec import decoder_spec

_THETA = 5_000_000.0  # if config.json has no value


def spec(config: ModelConfig) -> ModelSpec:
    """Build a MiniMax-M2's spec from config.json. Raises `ModelError` as `decoder_spec` does."""
    raw = {"rope_theta": _THETA, **config.hf_config}
    if raw.get("rotary_dim") is not None:
        head_dim = config.facts.layers[0].attention.head_dim
        raw = {"partial_rotary_factor": raw["rotary_dim"] / head_dim, **raw}
    return decoder_spec(
        replace(config, hf_config=raw),
        lambda experts: Routing(top_k=experts.per_token, scoring=Scoring.SIGMOID, renormalize=True),
    )
