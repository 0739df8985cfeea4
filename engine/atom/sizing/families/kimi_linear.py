"""Layers of Kimi Linear (Moonshot AI, arXiv 2510.26692): delta attention whose gates are of each
channel, in every fourth layer attention over latents without positions, and experts."""

from __future__ import annotations

from msgspec import structs

from atom.sizing.attention.kinds import NO_ROPE, AttentionFacts, StateAttention
from atom.sizing.config_fields import Config, mapping, positive, texts
from atom.sizing.families.checkpoint_names import NamePairs
from atom.sizing.families.deepseek import glm_mlp, latent_attention
from atom.sizing.families.reading import is_narrow, numbers
from atom.sizing.layers import LayerFacts
from atom.sizing.states import StateKind, StateNet

# Its config.json's spelling of the usual fields.
_FIELDS = {
    "model_max_length": "max_position_embeddings",
    "moe_renormalize": "norm_topk_prob",
    "num_expert_group": "n_group",
    "num_experts_per_token": "num_experts_per_tok",
    "num_shared_experts": "n_shared_experts",
    "num_experts": "n_routed_experts",
    "num_local_experts": "n_routed_experts",
}
_DEFAULTS = {"n_routed_experts": 256, "num_experts_per_tok": 8, "n_shared_experts": 1}
_NAMES = (
    ("block_sparse_moe", "mlp"),
    ("w1", "gate_proj"),
    ("w3", "up_proj"),
    ("w2", "down_proj"),
)


def kimi_linear_fields(config: Config) -> Config:
    """Rename the configuration's fields to DeepSeek's names."""
    found = {ours: config[key] for key, ours in _FIELDS.items() if config.get(key) is not None}
    return {**_DEFAULTS, **config, **found}


def kimi_linear_names(config: Config) -> NamePairs:
    keeping = [
        index
        for index in range(positive(config, "num_hidden_layers"))
        if not _attends(config, index)
    ]
    layers = [f"model.layers.{index}" for index in keeping]
    return (*((f"{layer}.self_attn", f"{layer}.linear_attn") for layer in layers), *_NAMES)


def kimi_linear(config: Config, index: int) -> LayerFacts:
    attention: AttentionFacts
    if _attends(config, index):
        attention = structs.replace(latent_attention(config), rope=NO_ROPE)
    else:
        attention = _delta_attention(config)
    return LayerFacts(attention=attention, mlp=glm_mlp(config, index, dense=1))


def _attends(config: Config, index: int) -> bool:
    """Return whether a layer attends; a checkpoint counts its layers from 1."""
    listed = numbers(mapping(config, "linear_attn_config"), "full_attn_layers")
    if texts(config, "layer_types") or not listed:
        default = not index or index % 4 != 0
        return not is_narrow(config, index, "linear_attention", default=default)
    return index + 1 in listed


def _delta_attention(config: Config) -> StateAttention:
    own = mapping(config, "linear_attn_config")
    heads = positive(own, "num_heads", default=positive(config, "linear_num_heads", default=32))
    size = positive(own, "head_dim", default=positive(config, "linear_head_dim", default=128))
    width = positive(config, "linear_conv_kernel_dim", default=4)
    net = StateNet(
        kind=StateKind.KIMI_DELTA,
        key_heads=heads,
        value_heads=heads,
        key_dim=size,
        value_dim=size,
        conv_width=positive(own, "short_conv_kernel_size", default=width),
    )
    return StateAttention(net=net)
