"""SmolLM3 (Hugging Face, 2025): Llama's decoder, of whose layers every fourth has no positions."""

from __future__ import annotations

from dataclasses import replace

from atom.config import ModelConfig
from atom.models.decoder.spec import ModelSpec
from atom.models.decoder.spec.decoder_spec import decoder_spec
from atom.models.decoder.spec.rope_settings import without_positions

_THETA = 2_000_000.0  # if config.json has no value


def spec(config: ModelConfig) -> ModelSpec:
    """Build a SmolLM3's spec from config.json. Raises `ModelError` as `decoder_spec` does."""
    raw = {"rope_theta": _THETA, **config.hf_config}
    return without_positions(decoder_spec(replace(config, hf_config=raw)))
