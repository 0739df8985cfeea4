"""ERNIE 4.5 (Baidu, 2025): Llama's decoder with a rope that rotates neighbouring elements; the
larger models have experts and shared experts, chosen by a softmax with a correction."""

from __future__ import annotations

from dataclasses import replace

from atom.config import ModelConfig
from atom.model_ops.routing import Routing
from atom.models.decoder.spec import ModelSpec
from atom.models.decoder.spec.decoder_spec import decoder_spec

_EPSILON, _THETA = 1e-5, 500_000.0  # if config.json has no value


def spec(config: ModelConfig) -> ModelSpec:
    """Build an ERNIE's spec from config.json. Raises `ModelError` as `decoder_spec` does."""
    raw = {"rms_norm_eps": _EPSILON, "rope_theta": _THETA, **config.hf_config}
    plain = decoder_spec(
        replace(config, hf_config=raw),
        lambda experts: Routing(top_k=experts.per_token, renormalize=True),
    )
    return plain.with_layers(
        lambda layer: replace(layer, rope=replace(layer.rope, interleaved=True))
    )
