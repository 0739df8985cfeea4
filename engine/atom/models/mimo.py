"""MiMo-V2-Flash (Xiaomi, arXiv 2601.02780): values that are narrower than keys, and scaled down;
most layers have windows with sinks and a separate rope; experts that corrected sigmoids choose."""

from __future__ import annotations

from dataclasses import replace

from atom.config import ModelConfig
from atom.models.decoder.spec import ModelSpec
from atom.models.decoder.spec.decoder_spec import decoder_spec
from atom.models.decoder.spec.rope_settings import rope_by_kind
from atom.models.glm_moe import sigmoid_routing

_EPSILON, _VALUE_SCALE, _ROTARY_SHARE = 1e-5, 0.707, 0.334  # if config.json has no value
_THETA, _WINDOW_THETA = 5_000_000.0, 10_000.0


def spec(config: ModelConfig) -> ModelSpec:
    """Build a MiMo's spec from config.json. Raises `ModelError` as `decoder_spec` does."""
    raw = config.hf_config
    raw = {"rms_norm_eps": raw.get("layernorm_epsilon") or _EPSILON, **raw}
    share = raw.get("partial_rotary_factor") or _ROTARY_SHARE
    thetas = {
        "full_attention": raw.get("rope_theta") or _THETA,
        "sliding_attention": raw.get("swa_rope_theta") or _WINDOW_THETA,
    }
    plain = {
        kind: {"rope_theta": theta, "partial_rotary_factor": share}
        for kind, theta in thetas.items()
    }
    scale = raw.get("attention_value_scale", _VALUE_SCALE)
    return decoder_spec(
        replace(config, hf_config=raw), lambda experts: sigmoid_routing(raw, experts)
    ).with_layers(
        lambda layer: replace(
            layer,
            rope=rope_by_kind(config, layer, plain),
            value_scale=1.0 if scale is None else float(scale),
        )
    )
