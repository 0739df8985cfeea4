"""Layers of LFM2 (Liquid AI, 2025): short convolutions, and attention in every third or so."""

from __future__ import annotations

from msgspec import structs

from atom.sizing.attention.kinds import AttentionFacts, QkNorm, StateAttention
from atom.sizing.config_fields import Config, count, flag, number, positive
from atom.sizing.families.checkpoint_names import NamePairs
from atom.sizing.families.reading import expert_count, grouped, is_narrow, numbers
from atom.sizing.layers import Experts, LayerFacts, MlpFacts
from atom.sizing.states import StateKind, StateNet

_NAMES = (
    ("operator_norm", "input_layernorm"),
    ("ffn_norm", "post_attention_layernorm"),
    ("embedding_norm", "norm"),
    ("self_attn.out_proj", "self_attn.o_proj"),
    ("q_layernorm", "q_norm"),
    ("k_layernorm", "k_norm"),
    ("conv.conv", "linear_attn.conv1d"),
    ("conv", "linear_attn"),
    ("feed_forward.expert_bias", "mlp.gate.e_score_correction_bias"),
    ("feed_forward", "mlp"),
    ("w1", "gate_proj"),
    ("w3", "up_proj"),
    ("w2", "down_proj"),
)


def lfm2_names(config: Config) -> NamePairs:
    return _NAMES


def lfm2_fields(config: Config) -> Config:
    """Rename the fields that the first checkpoints spell differently."""
    tied, width = config.get("tie_embedding"), config.get("block_ff_dim")
    own = {"tie_word_embeddings": tied, "intermediate_size": width}
    return {**config, **{key: value for key, value in own.items() if value is not None}}


def lfm2(config: Config, index: int) -> LayerFacts:
    """Read a layer of LFM2, whose MLP may be narrower than its intermediate_size."""
    width = positive(config, "intermediate_size", default=12_288)
    if flag(config, "block_auto_adjust_ff_dim", default=True):
        width = int(number(config, "block_ffn_dim_multiplier", default=1.0) * (2 * width // 3))
        multiple = positive(config, "block_multiple_of", default=256)
        width = -(-width // multiple) * multiple
    return LayerFacts(attention=_attention(config, index), mlp=MlpFacts(intermediate_size=width))


def lfm2_moe(config: Config, index: int) -> LayerFacts:
    """Read a layer of LFM2's mixtures: experts after the first few layers."""
    if index < count(config, "num_dense_layers", default=2):
        mlp = MlpFacts(intermediate_size=positive(config, "intermediate_size", default=7168))
    else:
        experts = Experts(
            count=expert_count(config, default=32),
            per_token=positive(config, "num_experts_per_tok", default=4),
            intermediate_size=positive(config, "moe_intermediate_size", default=1792),
            router_correction=flag(config, "use_expert_bias", default=True),
        )
        mlp = MlpFacts(experts=experts)
    return LayerFacts(attention=_attention(config, index), mlp=mlp)


def _attention(config: Config, index: int) -> AttentionFacts:
    listed = numbers(config, "full_attn_idxs")
    if not is_narrow(config, index, "conv", default=bool(listed) and index not in listed):
        return structs.replace(grouped(config), qk_norm=QkNorm.HEADS)
    return StateAttention(
        net=StateNet(
            kind=StateKind.SHORT_CONV,
            key_heads=0,
            value_heads=positive(config, "hidden_size"),
            key_dim=0,
            value_dim=1,
            conv_width=positive(config, "conv_L_cache", default=3),
            bias=flag(config, "conv_bias"),
            conv_bias=flag(config, "conv_bias"),
        )
    )
