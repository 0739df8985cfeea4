"""EXAONE 4 (LG AI Research, arXiv 2507.11407): norms after attention and MLP, and of each head of
queries and keys; the larger models have windows, and layers without positions that see all
tokens."""

from __future__ import annotations

from dataclasses import replace

from atom.config import ModelConfig
from atom.models.decoder.spec import ModelSpec, NormPlacement
from atom.models.decoder.spec.decoder_spec import decoder_spec
from atom.models.decoder.spec.rope_settings import without_positions

_EPSILON = 1e-5  # if config.json has no value


def spec(config: ModelConfig) -> ModelSpec:
    """Build an EXAONE's spec from config.json. Raises `ModelError` as `decoder_spec` does."""
    raw = {"rms_norm_eps": _EPSILON, **config.hf_config}
    plain = decoder_spec(replace(config, hf_config=raw))
    return without_positions(
        plain.with_layers(lambda layer: replace(layer, norms=NormPlacement.BEHIND))
    )
