"""Nemotron-H (NVIDIA, arXiv 2504.03624) and Nemotron 3 (2025): Mamba-2's mixers, a few layers of
attention without positions, and MLPs or experts without a gate."""

from __future__ import annotations

from dataclasses import replace

from atom.config import ModelConfig
from atom.models.decoder.spec import ModelSpec
from atom.models.decoder.spec.decoder_spec import decoder_spec
from atom.models.decoder.spec.rope_settings import without_positions
from atom.models.glm_moe import sigmoid_routing


def spec(config: ModelConfig) -> ModelSpec:
    """Build a Nemotron-H's spec from config.json. Raises `ModelError` as `decoder_spec` does."""
    raw = config.hf_config
    own = {**raw, "rms_norm_eps": raw.get("layer_norm_epsilon", 1e-5)}
    plain = decoder_spec(
        replace(config, hf_config=own), lambda experts: sigmoid_routing(raw, experts)
    )
    return without_positions(plain)
