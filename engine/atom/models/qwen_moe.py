"""Qwen2's and Qwen3's mixtures of experts (technical reports, 2024 and 2025): many small experts in
all or some layers, and in Qwen2 a gated shared expert."""

from __future__ import annotations

from atom.config import ModelConfig
from atom.model_ops.routing import Routing
from atom.models.decoder.spec import ModelSpec
from atom.models.decoder.spec.decoder_spec import decoder_spec


def spec(config: ModelConfig) -> ModelSpec:
    """Build the spec of a Qwen with experts from config.json. Raises `ModelError` as `decoder_spec`
    does."""
    renormalize = bool(config.hf_config.get("norm_topk_prob", False))
    return decoder_spec(
        config, lambda experts: Routing(top_k=experts.per_token, renormalize=renormalize)
    )
