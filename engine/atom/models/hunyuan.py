"""Hunyuan (Tencent, 2025): Llama's decoder with norms of queries and keys after the rotation, and a
rope whose base is stretched once; the larger model has experts and a shared expert."""

from __future__ import annotations

from dataclasses import replace

from atom.config import ModelConfig
from atom.errors import ModelError
from atom.model_ops.routing import Routing
from atom.models.decoder.spec import ModelSpec
from atom.models.decoder.spec.decoder_spec import decoder_spec

_EPSILON = 1e-5  # if config.json has no value


def spec(config: ModelConfig) -> ModelSpec:
    """Build a Hunyuan's spec from config.json. Raises `ModelError` as `decoder_spec` does, and for
    a rope that scales queries and keys, since the later norms would undo the scale."""
    raw = {"rms_norm_eps": _EPSILON, **config.hf_config}
    plain = decoder_spec(
        replace(config, hf_config=raw),
        lambda experts: Routing(top_k=experts.per_token, renormalize=True),
    )
    if any(layer.rope.attention_factor != 1.0 for layer in plain.layers):
        raise ModelError(
            f"config.json: rope type {config.facts.rope.kinds!r} scales queries and keys, which is "
            f"not supported for {config.architecture}; use the config.json that came with the "
            "weights"
        )
    return plain
