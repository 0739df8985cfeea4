"""gpt-oss (OpenAI, arXiv 2508.10925): every other layer attends to a window, each head has a sink,
and all layers have experts, with biases and a SwiGLU that is clamped. Checkpoints stack the
experts' matrices, in MXFP4 or plain."""

from __future__ import annotations

from dataclasses import replace

from atom.config import ModelConfig
from atom.model_ops.activations import ClampedSwiGLU
from atom.model_ops.routing import Routing
from atom.models.decoder.spec import ModelSpec
from atom.models.decoder.spec.decoder_spec import decoder_spec

_EPSILON, _THETA = 1e-5, 150_000.0
_ALPHA, _LIMIT = 1.702, 7.0
_ROPE = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}


def spec(config: ModelConfig) -> ModelSpec:
    """Build a gpt-oss's spec from config.json. Raises `ModelError` as `decoder_spec` does."""
    raw = {"rms_norm_eps": _EPSILON, "rope_theta": _THETA, **config.hf_config}
    if not (raw.get("rope_parameters") or raw.get("rope_scaling")):
        raw["rope_parameters"] = _ROPE
    plain = decoder_spec(
        replace(config, hf_config=raw),
        lambda experts: Routing(top_k=experts.per_token, renormalize=True),
    )
    activation = ClampedSwiGLU(
        float(raw.get("swiglu_alpha") or _ALPHA), float(raw.get("swiglu_limit") or _LIMIT)
    )
    return replace(
        plain, layers=tuple(replace(layer, activation=activation) for layer in plain.layers)
    )
