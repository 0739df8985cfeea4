"""DeepSeek V2, V3 and V3.2 (arXiv 2405.04434, 2412.19437, 2512.02556), and models that share their
names or their layers, such as R1, Kimi-K2, GLM-4.7-Flash and GLM-5. They have latent attention
whose rope rotates neighbouring elements, and scores that grow with a lengthened context. After the
first layers they have experts in groups, of which a few are considered. V3.2 and GLM-5 have an
indexer that selects the tokens to attend to; in GLM-5.2 later layers share its selection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from atom.config import ModelConfig
from atom.errors import ModelError
from atom.model_ops.index_values import IndexShape
from atom.model_ops.rotary_embedding import RopeConfig, yarn_mscale
from atom.model_ops.routing import Routing, Scoring
from atom.model_ops.values import LatentShape
from atom.models.decoder.spec import LayerSpec, ModelSpec
from atom.models.decoder.spec.decoder_spec import decoder_spec
from atom.models.decoder.spec.rope_settings import rope_parameters
from atom.sizing.attention.kinds import LatentAttention
from atom.sizing.layers import Experts


def spec(config: ModelConfig) -> ModelSpec:
    """Build a DeepSeek model's spec from config.json. Raises `ModelError` as `decoder_spec` does,
    and on a routing that this architecture does not have."""
    raw = config.hf_config
    routing = _ROUTINGS.get(config.architecture, _v3_routing)
    plain = decoder_spec(config, lambda experts: routing(raw, experts))
    return plain.with_layers(
        lambda layer: replace(
            layer,
            attention=_shape(config, layer),
            rope=_rope(config, layer),
            index=_index(config, layer),
        )
    )


def _shape(config: ModelConfig, layer: LayerSpec) -> LatentShape:
    shape, parameters = layer.attention, rope_parameters(config.hf_config)
    assert isinstance(shape, LatentShape)
    lengthened = float(parameters.get("mscale_all_dim") or 0.0)
    if layer.rope.scaling is None or not lengthened:
        return shape
    mscale = yarn_mscale(float(parameters.get("factor") or 1.0), lengthened)
    return replace(shape, scale=shape.scale * mscale * mscale)


def _index(config: ModelConfig, layer: LayerSpec) -> IndexShape | None:
    attention = layer.facts.attention
    assert isinstance(attention, LatentAttention)
    latent, index = attention.latent, attention.latent.own_index
    if index is None:
        return None
    return IndexShape(
        num_heads=index.heads,
        dim=index.dim,
        rope_dim=latent.rope_dim,
        top_k=index.top_k,
        interleaved=config.architecture == "GlmMoeDsaForCausalLM",
    )


def _rope(config: ModelConfig, layer: LayerSpec) -> RopeConfig:
    interleaved = config.hf_config.get("rope_interleave")
    return replace(layer.rope, interleaved=True if interleaved is None else bool(interleaved))


def _v2_routing(raw: Mapping[str, Any], experts: Experts) -> Routing:
    _only(raw, "scoring_func", "softmax")
    _only(raw, "norm_topk_prob", False)
    grouped = raw.get("topk_method") == "group_limited_greedy"
    if not grouped:
        _only(raw, "topk_method", "greedy")
    return Routing(
        top_k=experts.per_token,
        scale=float(raw.get("routed_scaling_factor", 1.0)),
        groups=_number(raw, "n_group") if grouped else 1,
        groups_kept=_number(raw, "topk_group") if grouped else 1,
    )


def _v3_routing(raw: Mapping[str, Any], experts: Experts) -> Routing:
    _only(raw, "scoring_func", "sigmoid")
    _only(raw, "topk_method", "noaux_tc")
    return Routing(
        top_k=experts.per_token,
        scoring=Scoring.SIGMOID,
        renormalize=bool(raw.get("norm_topk_prob", True)),
        scale=float(raw.get("routed_scaling_factor", 2.5)),
        groups=_number(raw, "n_group", 8),
        groups_kept=_number(raw, "topk_group", 4),
        group_top=2,
    )


def _glm_routing(raw: Mapping[str, Any], experts: Experts) -> Routing:
    """Return GLM's routing: as V3's, with one group if config.json has no number."""
    return _v3_routing({"n_group": 1, "topk_group": 1, **raw}, experts)


def _glm_lite_routing(raw: Mapping[str, Any], experts: Experts) -> Routing:
    return _glm_routing({"routed_scaling_factor": 1.8, **raw}, experts)


_ROUTINGS = {
    "DeepseekV2ForCausalLM": _v2_routing,
    "Glm4MoeLiteForCausalLM": _glm_lite_routing,
    "GlmMoeDsaForCausalLM": _glm_routing,
}


def _number(raw: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = raw.get(key, default)
    if not isinstance(value, int) or value < 1:
        raise ModelError(f"config.json: {key} must be a whole number, 1 or more, got {value!r}")
    return value


def _only(raw: Mapping[str, Any], key: str, value: object) -> None:
    """Refuse another value than the one that is computed; none at all means that one."""
    if raw.get(key) not in (None, value):
        raise ModelError(
            f"config.json: {key} {raw[key]!r} is not supported for {raw['architectures'][0]}; "
            f"supported: {value!r}"
        )
