"""GLM-4.5 (GLM team, arXiv 2508.06471): heads of which half rotates, a few dense layers, then many
small experts and a shared expert; the routing is DeepSeek-V3's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from atom.config import ModelConfig
from atom.model_ops.routing import Routing, Scoring
from atom.models.decoder.spec import ModelSpec
from atom.models.decoder.spec.decoder_spec import decoder_spec
from atom.sizing.layers import Experts

_ROTARY_SHARE = 0.5  # of a head, if config.json has no value


def spec(config: ModelConfig) -> ModelSpec:
    """Build the spec of a GLM with experts from config.json. Raises `ModelError` as `decoder_spec`
    does."""
    raw = {"partial_rotary_factor": _ROTARY_SHARE, **config.hf_config}
    return decoder_spec(
        replace(config, hf_config=raw), lambda experts: sigmoid_routing(raw, experts)
    )


def sigmoid_routing(raw: Mapping[str, Any], experts: Experts) -> Routing:
    """Return the routing by corrected sigmoids, with one group if config.json has no number."""
    return Routing(
        top_k=experts.per_token,
        scoring=Scoring.SIGMOID,
        renormalize=bool(raw.get("norm_topk_prob", True)),
        scale=float(raw.get("routed_scaling_factor") or 1.0),
        groups=int(raw.get("n_group") or 1),
        groups_kept=int(raw.get("topk_group") or 1),
        group_top=2,
    )
