"""config.json → DecoderSpec, with every field checked that would change the computation."""

from __future__ import annotations

from atom.config import ModelConfig
from atom.errors import ModelError
from atom.model_ops.backends.interface import AttentionShape
from atom.model_ops.rotary_embedding import rope_config
from atom.models.decoder import DecoderSpec


def decoder_spec(config: ModelConfig) -> DecoderSpec:
    """Raises `ModelError` on a field whose meaning this version does not compute."""
    facts, raw = config.facts, config.hf_config
    if len(facts.layer_counts) != 1:
        raise ModelError("config.json: layers that are not all alike are not supported")
    attention, mlp = facts.layers[0].attention, facts.layers[0].mlp
    shape = AttentionShape(
        num_heads=attention.num_heads,
        num_kv_heads=attention.num_kv_heads,
        head_dim=attention.head_dim,
        scale=attention.head_dim**-0.5,
    )
    return DecoderSpec(
        num_layers=facts.num_layers,
        hidden_size=facts.hidden_size,
        intermediate_size=mlp.intermediate_size,
        vocab_size=facts.vocab_size,
        max_position=config.max_model_len,
        attention=shape,
        rope=rope_config(raw, attention.head_dim),
        rms_norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
        qk_norm=attention.qk_norm,
        attention_bias=attention.qkv_bias,
        output_bias=attention.output_bias,
        mlp_bias=mlp.bias,
        tie_word_embeddings=facts.tie_word_embeddings,
    )
