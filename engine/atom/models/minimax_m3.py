"""MiniMax-M3 (MiniMax, 2026), the text part: in most layers an indexer selects, for each KV head,
the spans of tokens to attend to; experts beside a shared one, chosen by corrected sigmoids, with a
clamped SwiGLU, as the first layers' MLPs have."""

from __future__ import annotations

from dataclasses import replace

from atom.config import ModelConfig
from atom.errors import ModelError
from atom.model_ops.activations import ClampedSwiGLU
from atom.model_ops.index_values import SpanIndexShape
from atom.model_ops.routing import Routing, Scoring
from atom.models.decoder.spec import LayerSpec, ModelSpec
from atom.models.decoder.spec.decoder_spec import decoder_spec
from atom.sizing.attention.kinds import GroupedAttention

_THETA = 5_000_000.0  # if config.json has no value
_ALPHA, _LIMIT, _SCALE = 1.702, 7.0, 2.0


def spec(config: ModelConfig) -> ModelSpec:
    """Build a MiniMax-M3's spec from config.json. Raises `ModelError` as `decoder_spec` does."""
    raw = {"rope_theta": _THETA, **config.hf_config}
    scale = float(raw.get("routed_scaling_factor", _SCALE))
    plain = decoder_spec(
        replace(config, hf_config=raw),
        lambda experts: Routing(
            top_k=experts.per_token, scoring=Scoring.SIGMOID, renormalize=True, scale=scale
        ),
    )
    activation = ClampedSwiGLU(
        float(raw.get("swiglu_alpha", _ALPHA)), float(raw.get("swiglu_limit", _LIMIT))
    )
    norm = replace(plain.norm, unit_offset=True)

    def changed(layer: LayerSpec) -> LayerSpec:
        return replace(layer, activation=activation, norm=norm, index=_index(layer))

    return replace(plain.with_layers(changed), norm=norm)


def _index(layer: LayerSpec) -> SpanIndexShape | None:
    attention = layer.facts.attention
    assert isinstance(attention, GroupedAttention)
    index = attention.softmax.index
    if index is None:
        return None
    if layer.rope.rotary_dim > index.dim:
        raise ModelError(
            f"config.json: {layer.rope.rotary_dim} elements of a head rotate, which is more than "
            f"the indexer's {index.dim} (index_head_dim); use another partial_rotary_factor"
        )
    return SpanIndexShape(
        num_heads=index.heads,
        dim=index.dim,
        rope_dim=layer.rope.rotary_dim,
        span=index.span,
        top_k=index.top_k,
        newest=index.newest,
    )
