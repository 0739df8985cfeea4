"""Build the ModelSpec of a text encoder from its facts and settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from atom.config import ModelConfig
from atom.errors import ModelError
from atom.model_ops.activations import Activation
from atom.model_ops.rotary_embedding import RopeConfig
from atom.model_ops.values import AttentionShape
from atom.models.decoder.spec import EncoderSpec, HeadSpec, LayerSpec, ModelSpec, NormSpec
from atom.pooling_config import TokenPooling
from atom.sizing.layers import EncoderFacts, LayerFacts
from atom.sizing.mask_rule import sliding_window
from atom.sizing.weights.layer_matrices import ATTENTION_MODULES, stored_projections


def encoder_spec(
    config: ModelConfig,
    encoder: EncoderSpec,
    placed: Callable[[LayerSpec, int], LayerSpec] = lambda layer, index: layer,
) -> ModelSpec:
    """Build a model's spec. placed: gives the layer of a number its rope and window."""
    facts, norm = config.facts, NormSpec(eps=encoder.eps)

    def built(layer: LayerFacts) -> LayerSpec:
        matrices, heads = tuple(stored_projections(facts, layer)), layer.attention
        return LayerSpec(
            facts=layer,
            matrices={each.name: each for each in matrices if _is_attention(each.name)},
            mlp=tuple(each for each in matrices if not _is_attention(each.name)),
            attention=AttentionShape(
                num_heads=heads.num_heads,
                num_kv_heads=heads.num_kv_heads,
                head_dim=heads.head_dim,
                scale=heads.head_dim**-0.5,
                sees_ahead=True,
            ),
            rope=RopeConfig(heads.head_dim, 0, 10_000.0),
            activation=Activation.SILU,  # unused: an encoder's MLP computes its own
            norm=norm,
        )

    return ModelSpec(
        hidden_size=facts.hidden_size,
        vocab_size=facts.vocab_size,
        max_position=config.max_model_len,
        tie_word_embeddings=True,
        norm=norm,
        layers=tuple(placed(built(layer), index) for index, layer in enumerate(facts.layers)),
        body=encoder,
    )


def sums_normed(config: ModelConfig, head: HeadSpec | None, unused: tuple[str, ...]) -> ModelSpec:
    """Build the spec of BERT's layers, which norm each sum with a bias."""
    return encoder_spec(
        config,
        EncoderSpec(
            facts=facts_of(config),
            activation=config.facts.hidden_act,
            eps=float(config.hf_config.get("layer_norm_eps", 1e-12)),
            norms_sums=True,
            norm_bias=True,
            pooled=pooled_tokens(config),
            head=head,
            unused=unused,
        ),
    )


def facts_of(config: ModelConfig) -> EncoderFacts:
    """Return the facts of the encoder beside its layers."""
    found = config.facts.inputs.encoder
    assert found is not None, "the row of an encoder reads them"
    return found


def pooled_tokens(config: ModelConfig) -> TokenPooling:
    """Return the tokens whose states are pooled: those of the head of labels, if there is one.
    Raises `ModelError` for a configuration that generates."""
    if config.pooling is None:
        raise ModelError(
            f"{config.path}: {config.architecture} is an encoder and generates nothing"
        )
    head = facts_of(config).head
    return config.pooling.tokens if head is None else head.pooling


def with_window(layer: LayerSpec, around: int) -> LayerSpec:
    """Return the layer whose queries see `around` tokens on each side of them."""
    assert isinstance(layer.attention, AttentionShape)
    mask = sliding_window(around + 1)
    return replace(layer, attention=replace(layer.attention, mask=mask, ahead=around))


def _is_attention(name: str) -> bool:
    return name.startswith(ATTENTION_MODULES)
