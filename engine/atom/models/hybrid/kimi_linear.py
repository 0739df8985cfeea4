"""Kimi Linear (Moonshot AI, arXiv 2510.26692): delta attention with a gate of each channel, in
every fourth layer DeepSeek's latent attention without positions, and DeepSeek's experts."""

from __future__ import annotations

from dataclasses import replace

from atom.config import ModelConfig
from atom.errors import ModelError
from atom.models.decoder.spec import ModelSpec
from atom.models.decoder.spec.decoder_spec import decoder_spec
from atom.models.decoder.spec.rope_settings import without_positions
from atom.models.glm_moe import sigmoid_routing
from atom.sizing.families.kimi_linear import kimi_linear_fields

_EPSILON, _SCALE = 1e-5, 2.446  # if config.json has no value


def spec(config: ModelConfig) -> ModelSpec:
    """Build a Kimi Linear's spec from config.json. Raises `ModelError` as `decoder_spec` does."""
    raw = {"rms_norm_eps": _EPSILON, **config.hf_config}
    said = {"routed_scaling_factor": _SCALE, **kimi_linear_fields(config.hf_config)}
    scoring = raw.get("moe_router_activation_func", "sigmoid")
    if scoring != "sigmoid":
        raise ModelError(
            f"config.json: moe_router_activation_func {scoring!r} is not supported; supported: "
            "sigmoid"
        )
    plain = decoder_spec(
        replace(config, hf_config=raw), lambda experts: sigmoid_routing(said, experts)
    )
    return without_positions(plain)
