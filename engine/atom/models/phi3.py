"""Phi-3 and Phi-4 (Microsoft, arXiv 2404.14219, 2412.08905, 2503.01743): Llama's decoder, whose
heads may rotate in part. Long contexts use LongRoPE; the longest served context decides which of
the two lists of factors applies to all requests."""

from __future__ import annotations

from dataclasses import replace

from atom.config import ModelConfig
from atom.models.decoder.spec import ModelSpec
from atom.models.decoder.spec.decoder_spec import decoder_spec
from atom.models.decoder.spec.rope_settings import rope_parameters

_DEFAULTS = {"rms_norm_eps": 1e-5, "original_max_position_embeddings": 4096}  # where unsaid
_LONGROPE = ("su", "yarn")  # as the first checkpoints call it


def spec(config: ModelConfig) -> ModelSpec:
    """Build a Phi's spec from config.json. Raises `ModelError` as `decoder_spec` does."""
    rope = rope_parameters(config.hf_config)
    kind = rope.pop("type", None)
    kind = rope.get("rope_type") or kind
    rope["rope_type"] = "longrope" if kind in _LONGROPE else kind
    raw = {**_DEFAULTS, **config.hf_config, "rope_parameters": rope}
    return decoder_spec(replace(config, hf_config=raw))
