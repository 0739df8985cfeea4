"""Qwen3-Next (Qwen team, 2025) and Qwen3.5 (2026), text: gated delta nets (arXiv 2412.06464) in
three of four layers, and gated attention in the fourth; many small experts and a gated shared
expert, or an MLP without experts. Norms' stored weights are offsets from 1."""

from __future__ import annotations

from dataclasses import replace

from atom.config import ModelConfig
from atom.model_ops.routing import Routing
from atom.models.decoder.spec import ModelSpec, NormSpec
from atom.models.decoder.spec.decoder_spec import decoder_spec

_ROTARY_SHARE = 0.25  # of a head, if config.json has no value


def spec(config: ModelConfig) -> ModelSpec:
    """Build the spec of a Qwen3-Next or Qwen3.5 from config.json. Raises `ModelError` as
    `decoder_spec` does."""
    raw = {"partial_rotary_factor": _ROTARY_SHARE, **config.hf_config}
    renormalize = bool(raw.get("norm_topk_prob", True))
    plain = decoder_spec(
        replace(config, hf_config=raw),
        lambda experts: Routing(top_k=experts.per_token, renormalize=renormalize),
    )
    norm = NormSpec(eps=plain.norm.eps, unit_offset=True)
    return replace(plain.with_layers(lambda layer: replace(layer, norm=norm)), norm=norm)
