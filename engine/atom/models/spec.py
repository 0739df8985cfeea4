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
    activation = raw.get("hidden_act", "silu")
    if activation != "silu":
        raise ModelError(f"config.json: hidden_act {activation!r} is not supported; only 'silu' is")
    attention = AttentionShape(
        num_heads=facts.num_attention_heads,
        num_kv_heads=facts.num_kv_heads,
        head_dim=facts.head_dim,
        scale=facts.head_dim**-0.5,
    )
    return DecoderSpec(
        num_layers=facts.num_layers,
        hidden_size=facts.hidden_size,
        intermediate_size=facts.intermediate_size,
        vocab_size=facts.vocab_size,
        max_position=config.max_model_len,
        attention=attention,
        rope=rope_config(raw, facts.head_dim),
        rms_norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
        qk_norm=facts.qk_norm,
        attention_bias=facts.attention_bias,
        output_bias=facts.attention_bias,
        mlp_bias=facts.mlp_bias,
        tie_word_embeddings=facts.tie_word_embeddings,
    )
