"""Gemma 4 (Gemma team, 2026), text: layers with full attention have another head size, and their
values may be their keys. Heads of queries, keys and values are normed, scores unscaled, and a
scalar multiplies each layer's output. The small models have an input per layer, and layers that
share another layer's keys; the model with experts has an MLP beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from atom.config import ModelConfig
from atom.errors import ModelError
from atom.model_ops.routing import Routing
from atom.model_ops.values import AttentionShape
from atom.models.decoder.spec import LayerSpec, ModelSpec, NormPlacement, PerLayerInputsSpec
from atom.models.decoder.spec.decoder_spec import decoder_spec
from atom.models.decoder.spec.rope_settings import rope_by_kind
from atom.sizing.mask_rule import CAUSAL

_ROPES: dict[str, dict[str, Any]] = {
    "full_attention": {
        "rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0,
    },
    "sliding_attention": {"rope_theta": 10_000.0},
}  # fmt: skip


def spec(config: ModelConfig) -> ModelSpec:
    """Build a Gemma 4's spec from config.json. Raises `ModelError` as `decoder_spec` does."""
    plain = decoder_spec(config, lambda experts: Routing(top_k=experts.per_token, renormalize=True))
    ropes: dict[str, dict[str, Any]] = _ROPES
    if config.hf_config.get("rope_parameters"):
        _check_shares(config.hf_config["rope_parameters"])
        ropes = {kind: {"rope_theta": rope["rope_theta"]} for kind, rope in _ROPES.items()}

    vision = config.facts.vision
    both_ways = vision is not None and vision.sees_ahead

    def changed(layer: LayerSpec) -> LayerSpec:
        assert isinstance(layer.attention, AttentionShape)
        # Layers that attend to all tokens stay causal for images, too.
        ahead = both_ways and layer.attention.mask != CAUSAL
        return replace(
            layer,
            norms=NormPlacement.AROUND,
            attention=replace(layer.attention, scale=1.0, sees_ahead=ahead),
            rope=rope_by_kind(config, layer, ropes),
        )

    facts, size = config.facts, plain.layers[0].facts.per_layer_input
    padding, vocab = config.hf_config.get("pad_token_id") or 0, facts.inputs.per_layer_vocab_size
    if size and vision is not None and not 0 <= padding < vocab:
        raise ModelError(
            f"config.json: pad_token_id {padding} stands for tokens of images in the inputs of "
            f"layers, which have rows 0 to {vocab - 1} (vocab_size_per_layer_input)"
        )
    inputs = PerLayerInputsSpec(vocab, facts.num_layers, size, padding)
    return replace(
        plain.with_layers(changed),
        embedding_scale=plain.hidden_size**0.5,
        logits_softcap=config.hf_config.get("final_logit_softcapping"),
        per_layer_inputs=inputs if size else None,
    )


def _check_shares(said: Mapping[str, Any]) -> None:
    """Raise `ModelError` for a partial_rotary_factor of plain rope: transformers' model rotates the
    whole head all the same."""
    for kind, rope in said.items():
        plain = isinstance(rope, Mapping) and rope.get("rope_type", "default") == "default"
        if plain and rope.get("partial_rotary_factor") not in (None, 1.0):
            raise ModelError(
                f"config.json: rope_parameters.{kind} has a partial_rotary_factor, and rope_type "
                "default turns whole heads; the rope_type of a Gemma 4 with one is proportional"
            )
