"""Layers of families in which some layers attend and the others keep a state: Qwen3-Next and
Qwen3.5."""

from __future__ import annotations

from dataclasses import replace

from msgspec import structs

from atom.sizing.attention.kinds import AttentionFacts, QkNorm, StateAttention
from atom.sizing.config_fields import Config, flag, positive, texts
from atom.sizing.errors import ModelFactsError
from atom.sizing.families.reading import dense_mlp, expert_count, grouped, is_dense
from atom.sizing.layers import Experts, LayerFacts, MlpFacts
from atom.sizing.states import StateKind, StateNet

_HEAD_DIM, _INTERVAL = 256, 4


def qwen3_next(config: Config, index: int) -> LayerFacts:
    """Read a layer of Qwen3-Next: three of four are gated delta nets, and the fourth attends with
    gated heads; most have experts."""
    if is_dense(config, index):
        mlp = dense_mlp(config)
    else:
        mlp = _experts(config, count=512, per_token=10)
    return LayerFacts(attention=_attention(config, index, _delta_net(config)), mlp=mlp)


def qwen3_5(config: Config, index: int) -> LayerFacts:
    """Read a layer of Qwen3.5's dense models, whose delta nets have a matrix for each part."""
    net = replace(_delta_net(config), kind=StateKind.DELTA_NET)
    mlp = MlpFacts(intermediate_size=positive(config, "intermediate_size", default=12_288))
    return LayerFacts(attention=_attention(config, index, net), mlp=mlp)


def qwen3_5_moe(config: Config, index: int) -> LayerFacts:
    """Read a layer of Qwen3.5's mixtures, all of whose layers have experts."""
    net = replace(_delta_net(config), kind=StateKind.DELTA_NET)
    mlp = _experts(config, count=256, per_token=8)
    return LayerFacts(attention=_attention(config, index, net), mlp=mlp)


def _attention(config: Config, index: int, net: StateNet) -> AttentionFacts:
    if _is_linear(config, index):
        return StateAttention(net=net)
    bias = flag(config, "attention_bias")
    attention = grouped(config, qkv_bias=bias, output_bias=bias, head_dim=_HEAD_DIM)
    matrices = replace(attention.matrices, output_gate=True)
    return structs.replace(attention, qk_norm=QkNorm.HEADS, matrices=matrices)


def _is_linear(config: Config, index: int) -> bool:
    kinds = texts(config, "layer_types")
    if not kinds:
        every = positive(config, "full_attention_interval", default=_INTERVAL)
        return bool((index + 1) % every)
    kind = kinds[index] if index < len(kinds) else None
    if kind not in ("full_attention", "linear_attention"):
        raise ModelFactsError(
            f"config.json: layer_types[{index}] is {kind!r}; known: full_attention, "
            "linear_attention",
            field="layer_types",
        )
    return kind == "linear_attention"


def _delta_net(config: Config) -> StateNet:
    net = StateNet(
        kind=StateKind.DELTA_NET_BY_KEY_HEAD,
        key_heads=positive(config, "linear_num_key_heads", default=16),
        value_heads=positive(config, "linear_num_value_heads", default=32),
        key_dim=positive(config, "linear_key_head_dim", default=128),
        value_dim=positive(config, "linear_value_head_dim", default=128),
        conv_width=positive(config, "linear_conv_kernel_dim", default=4),
    )
    if net.value_heads % net.key_heads:
        raise ModelFactsError(
            f"config.json: linear_num_key_heads {net.key_heads} does not divide "
            f"linear_num_value_heads {net.value_heads}",
            field="linear_num_key_heads",
        )
    return net


def _experts(config: Config, *, count: int, per_token: int) -> MlpFacts:
    return MlpFacts(
        experts=Experts(
            count=expert_count(config, default=count),
            per_token=positive(config, "num_experts_per_tok", default=per_token),
            intermediate_size=positive(config, "moe_intermediate_size", default=512),
            shared_intermediate_size=positive(
                config, "shared_expert_intermediate_size", default=512
            ),
            shared_gate=True,
        )
    )
