"""DeepSeek V4 (DeepSeek-AI, 2026): a window beside entries that each sum up 4 tokens, selected by
an indexer, or 128 tokens; several residual streams, mixed by hyper-connections; experts whose
activations are clamped, selected by a table of tokens in the first layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from atom.config import ModelConfig
from atom.errors import ModelError
from atom.model_ops.activations import ClampedSiLU
from atom.model_ops.rotary_embedding import RopeConfig, rope_config
from atom.model_ops.routing import Routing, Scoring
from atom.models.decoder.spec import LayerSpec, ModelSpec, StreamsSpec
from atom.models.decoder.spec.decoder_spec import decoder_spec
from atom.models.decoder.spec.rope_settings import rope_limits
from atom.sizing.attention.kinds import EntriesAttention
from atom.sizing.layers import Experts

_THETA, _ENTRIES_THETA = 10_000.0, 160_000.0
_SCORINGS = {scoring.value: scoring for scoring in (Scoring.SQRT_SOFTPLUS, Scoring.SIGMOID)}


def spec(config: ModelConfig) -> ModelSpec:
    """Build a DeepSeek V4's spec from config.json. Raises `ModelError` as `decoder_spec` does, and
    on scores that transformers' model does not compute."""
    raw = config.hf_config
    plain = decoder_spec(
        replace(config, hf_config={**raw, "rope_scaling": None, "rope_parameters": None}),
        lambda experts: _routing(raw, experts),
    )

    def changed(layer: LayerSpec) -> LayerSpec:
        return replace(
            layer,
            rope=_rope(config, layer),
            activation=ClampedSiLU(float(raw.get("swiglu_limit", 10.0))),
            streams=StreamsSpec(
                count=layer.facts.streams,
                iterations=int(raw.get("hc_sinkhorn_iters", 20)),
                eps=float(raw.get("hc_eps", 1e-6)),
                norm_eps=layer.norm.eps,
            ),
        )

    return plain.with_layers(changed)


def _routing(raw: Mapping[str, Any], experts: Experts) -> Routing:
    """Return the routing by corrected scores, which are normalised to the sum 1 whatever
    norm_topk_prob is, as in transformers' model."""
    name = str(raw.get("scoring_func") or Scoring.SQRT_SOFTPLUS.value)
    if name not in _SCORINGS:
        raise ModelError(
            f"config.json: scoring_func {name!r} is not supported for DeepseekV4ForCausalLM; "
            f"supported: {', '.join(_SCORINGS)}"
        )
    return Routing(
        top_k=experts.per_token,
        scoring=_SCORINGS[name],
        renormalize=True,
        scale=float(raw.get("routed_scaling_factor", 1.5)),
    )


def _rope(config: ModelConfig, layer: LayerSpec) -> RopeConfig:
    """Return the rope of layers with a window alone, or of those with entries, which is the only
    scaled one: in either spelling of config.json, by kinds or one for the entries."""
    raw, attention = config.hf_config, layer.facts.attention
    assert isinstance(attention, EntriesAttention)
    net = attention.compressed
    said = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    kind = "compress" if net.rate else "main"
    if isinstance(said.get("main"), Mapping) and isinstance(said.get("compress"), Mapping):
        parameters = dict(said[kind])
    elif net.rate:
        parameters = {key: value for key, value in said.items() if not isinstance(value, Mapping)}
        parameters["rope_theta"] = raw.get("compress_rope_theta") or _ENTRIES_THETA
        parameters.setdefault("attention_factor", 1.0)
    else:
        parameters = {"rope_theta": raw.get("rope_theta") or _THETA}
    # The rotating part is already given in elements.
    parameters["partial_rotary_factor"] = 1.0
    return rope_config(parameters, net.rope_dim, rope_limits(config))
