"""Kimi Linear (Moonshot AI, arXiv 2510.26692): delta attention with a gate of each channel, in
every fourth layer DeepSeek's latent attention without positions, and DeepSeek's experts."""

from __future__ import annotations

from dataclasses import replace

from atom.config import ModelConfig
from atom.errors import ModelError
from atom.model_ops.routing import Routing, Scoring
from atom.models.decoder.spec import ModelSpec, decoder_spec, without_positions
from atom.sizing.layers import Experts

_EPSILON = 1e-5  # where config.json does not say


def spec(config: ModelConfig) -> ModelSpec:
    """Return what config.json says of a Kimi Linear. Raises `ModelError` as `decoder_spec` does."""
    raw = {"rms_norm_eps": _EPSILON, **config.hf_config}
    scoring = raw.get("moe_router_activation_func", "sigmoid")
    if scoring != "sigmoid":
        raise ModelError(
            f"config.json: moe_router_activation_func {scoring!r} is not supported; supported: "
            "sigmoid"
        )

    def routing(experts: Experts) -> Routing:
        return Routing(
            top_k=experts.per_token,
            scoring=Scoring.SIGMOID,
            renormalize=bool(raw.get("moe_renormalize", raw.get("norm_topk_prob", True))),
            scale=float(raw.get("routed_scaling_factor", 2.446)),
            groups=int(raw.get("num_expert_group", raw.get("n_group", 1))),
            groups_kept=int(raw.get("topk_group", 1)),
            group_top=2,
        )

    return without_positions(decoder_spec(replace(config, hf_config=raw), routing))
