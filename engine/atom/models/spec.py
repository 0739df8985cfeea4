"""ModelSpec: all that a decoder computes by, layer after layer, read once from config.json.

Sizes come from atom.sizing (ModelFacts: heads, windows, biases, matrices); what does not change a
size stands here: scales, ropes, activations, epsilons. A family's file changes what its models do
differently (`replace`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from atom.config import ModelConfig
from atom.errors import ModelError
from atom.model_ops.backends.interface import OpCase
from atom.model_ops.rotary_embedding import RopeConfig, RopeLimits, rope_config
from atom.model_ops.values import Activation, AttentionShape
from atom.sizing.layers import LayerFacts
from atom.sizing.weights import Projection, projections


@dataclass(frozen=True, slots=True, kw_only=True)
class NormSpec:
    """unit_offset: see RMSNorm."""

    eps: float
    unit_offset: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpec:
    """One decoder layer. matrices: by the module's name below the layer, as in a checkpoint;
    sandwich: attention and MLP have a norm behind them as well as before."""

    facts: LayerFacts
    matrices: Mapping[str, Projection]
    attention: AttentionShape
    rope: RopeConfig
    activation: Activation
    norm: NormSpec
    sandwich: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """embedding_scale: multiplies what is looked up; logits_softcap: bounds the logits;
    max_position: one more than the last position that is computed."""

    hidden_size: int
    vocab_size: int
    max_position: int
    tie_word_embeddings: bool
    norm: NormSpec
    layers: tuple[LayerSpec, ...]
    embedding_scale: float | None = None
    logits_softcap: float | None = None

    def op_case(self, dtype: torch.dtype, kv_dtype: torch.dtype, block_size: int) -> OpCase:
        """What this model asks of its operations."""
        return OpCase(
            dtype=dtype,
            kv_dtype=kv_dtype,
            attention=tuple(dict.fromkeys(layer.attention for layer in self.layers)),
            block_size=block_size,
            activations=tuple(dict.fromkeys(layer.activation for layer in self.layers)),
        )


def decoder_spec(config: ModelConfig) -> ModelSpec:
    """What config.json says of a decoder whose layers are built as Llama's are. Raises `ModelError`
    on a field whose meaning this version does not compute."""
    facts, raw = config.facts, config.hf_config
    norm = NormSpec(eps=float(raw.get("rms_norm_eps", 1e-6)))
    activation = _activation(facts.hidden_act)
    rope = rope_config(
        rope_parameters(raw), facts.layers[0].attention.head_dim, rope_limits(config)
    )
    layers = tuple(
        LayerSpec(
            facts=layer,
            matrices={
                matrix.name: matrix
                for matrix in projections(layer, facts.hidden_size, facts.experts_block)
            },
            attention=_shape(layer),
            rope=rope,
            activation=activation,
            norm=norm,
        )
        for layer in facts.layers
    )
    return ModelSpec(
        hidden_size=facts.hidden_size,
        vocab_size=facts.vocab_size,
        max_position=config.max_model_len,
        tie_word_embeddings=facts.tie_word_embeddings,
        norm=norm,
        layers=layers,
    )


def rope_parameters(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The rope's parameters in either spelling of config.json: rope_parameters (transformers 5), or
    rope_theta and rope_scaling."""
    found = dict(raw.get("rope_parameters") or raw.get("rope_scaling") or {})
    found.setdefault("rope_theta", raw.get("rope_theta") or 10000.0)
    if "partial_rotary_factor" in raw:
        found.setdefault("partial_rotary_factor", raw["partial_rotary_factor"])
    return found


def rope_limits(config: ModelConfig) -> RopeLimits:
    """The lengths that kinds of rope refer to."""
    original = config.hf_config.get("original_max_position_embeddings")
    return RopeLimits(
        max_position=config.facts.max_position_embeddings,
        original=None if original is None else int(original),
        longest=config.max_model_len,
    )


def _shape(layer: LayerFacts) -> AttentionShape:
    attention = layer.attention
    return AttentionShape(
        num_heads=attention.num_heads,
        num_kv_heads=attention.num_kv_heads,
        head_dim=attention.head_dim,
        scale=attention.head_dim**-0.5,
        window=attention.window,
    )


def _activation(name: str) -> Activation:
    try:
        return Activation(name)
    except ValueError:
        known = ", ".join(kind.value for kind in Activation)
        raise ModelError(
            f"config.json: activation {name!r} is not supported; known: {known}"
        ) from None
