"""Layers of families with Mamba-2's mixers: Nemotron-H, and Granite 4's hybrids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from msgspec import structs

from atom.sizing.attention.kinds import NO_ROPE, GroupedAttention, Rope, StateAttention
from atom.sizing.config_fields import Config, count, flag, number, positive, texts
from atom.sizing.errors import ModelFactsError
from atom.sizing.families.checkpoint_names import NamePairs
from atom.sizing.families.reading import grouped
from atom.sizing.layers import Experts, LayerFacts, MlpFacts
from atom.sizing.states import StateKind, StateNet

_MAMBA, _ATTENTION, _MLP, _EXPERTS = "linear_attention", "full_attention", "mlp", "moe"
_KINDS = {
    "mamba": _MAMBA, "attention": _ATTENTION,
    "M": _MAMBA, "*": _ATTENTION, "-": _MLP, "E": _EXPERTS,
}  # fmt: skip


def granite_hybrid(config: Config, index: int) -> LayerFacts:
    """Read a layer of Granite 4's hybrids: Mamba-2 or attention, then an MLP for all tokens, with
    or without experts."""
    width = positive(config, "shared_intermediate_size", default=1024)
    experts = None
    if count(config, "num_local_experts", default=8):
        experts = Experts(
            count=count(config, "num_local_experts", default=8),
            per_token=positive(config, "num_experts_per_tok", default=2),
            intermediate_size=positive(config, "intermediate_size"),
            shared_intermediate_size=width,
        )
    mlp = MlpFacts(intermediate_size=0 if experts else width, experts=experts, fused=True)
    kinds = texts(config, "layer_types") or texts(config, "layers_block_type")
    if _kind("layer_types", kinds, index) == _MAMBA:
        return LayerFacts(attention=_granite_mamba(config), mlp=mlp)
    bias = flag(config, "attention_bias")
    attention = grouped(config, qkv_bias=bias, output_bias=bias)
    rope = Rope() if config.get("position_embedding_type") == "rope" else NO_ROPE
    return LayerFacts(attention=structs.replace(attention, rope=rope), mlp=mlp)


def granite_hybrid_names(config: Config) -> NamePairs:
    beside = "mlp.shared_experts" if count(config, "num_local_experts", default=8) else "mlp"
    return (
        ("mamba", "linear_attn"),
        ("block_sparse_moe.router.layer", "mlp.gate"),
        ("block_sparse_moe.input_linear.weight", "mlp.experts.gate_up_proj"),
        ("block_sparse_moe.output_linear.weight", "mlp.experts.down_proj"),
        ("block_sparse_moe.input_linear.weight_scale", "mlp.experts.gate_up_proj_scale"),
        ("block_sparse_moe.output_linear.weight_scale", "mlp.experts.down_proj_scale"),
        ("shared_mlp.input_linear", f"{beside}.gate_up_proj"),
        ("shared_mlp.output_linear", f"{beside}.down_proj"),
    )


def _granite_mamba(config: Config) -> StateAttention:
    heads = positive(config, "mamba_n_heads", default=128)
    inner = int(number(config, "mamba_expand", default=2) * positive(config, "hidden_size"))
    said = config.get("mamba_d_head") not in (None, "auto")
    size = positive(config, "mamba_d_head") if said else inner // heads
    return _mixer(
        config,
        StateNet(
            kind=StateKind.MAMBA2,
            key_heads=positive(config, "mamba_n_groups", default=1),
            value_heads=heads,
            key_dim=positive(config, "mamba_d_state", default=256),
            value_dim=size,
            conv_width=positive(config, "mamba_d_conv", default=4),
            conv_bias=flag(config, "mamba_conv_bias", default=True),
            bias=flag(config, "mamba_proj_bias"),
        ),
    )


@dataclass(frozen=True, slots=True)
class _Pair:
    """Two of Nemotron-H's layers that form one layer here: a mixer, number `at`, and the MLP or
    experts after it, None if another mixer follows."""

    at: int
    mixer: str
    mlp: str | None


def nemotron_h(config: Config, index: int) -> LayerFacts:
    """Read a mixer of Nemotron-H with the MLP or experts after it, which have no gates."""
    pairs = _pairs(config)
    if index >= len(pairs):
        raise ModelFactsError(
            f"config.json: layers_block_type names {len(pairs)} mixers, and there is a layer "
            f"{index}",
            field="layers_block_type",
        )
    pair = pairs[index]
    mlp = MlpFacts(gated=False)
    if pair.mlp == _MLP:
        width = positive(config, "intermediate_size", default=21_504)
        mlp = replace(mlp, intermediate_size=width, bias=flag(config, "mlp_bias"))
    elif pair.mlp == _EXPERTS:
        mlp = replace(mlp, experts=_nemotron_experts(config), bias=flag(config, "mlp_bias"))
    attention = _nemotron_mamba(config) if pair.mixer == _MAMBA else _nemotron_attention(config)
    return LayerFacts(attention=attention, mlp=mlp, norms=1 if pair.mlp is None else 2)


def nemotron_h_fields(config: Config) -> Config:
    """Count a mixer and the MLP or experts after it as one layer."""
    own = {"mlp_hidden_act": "relu2", "num_attention_heads": 32, "num_key_value_heads": 8}
    made = {"num_hidden_layers": len(_pairs(config)), "num_nextn_predict_layers": 0}
    return {"hidden_size": 4096, "max_position_embeddings": 4096, **own, **config, **made}


def nemotron_h_names(config: Config) -> NamePairs:
    return (
        ("backbone.embeddings", "model.embed_tokens"),
        ("backbone.norm_f", "model.norm"),
        *_layer_names(_pairs(config)),
    )


def _layer_names(pairs: list[_Pair]) -> Iterator[tuple[str, str]]:
    for number_here, pair in enumerate(pairs):
        theirs, ours = f"backbone.layers.{pair.at}", f"model.layers.{number_here}"
        mixer = "linear_attn" if pair.mixer == _MAMBA else "self_attn"
        yield f"{theirs}.norm", f"{ours}.input_layernorm"
        yield f"{theirs}.mixer", f"{ours}.{mixer}"
        if pair.mlp is not None:
            theirs = f"backbone.layers.{pair.at + 1}"
            yield f"{theirs}.norm", f"{ours}.post_attention_layernorm"
            yield f"{theirs}.mixer", f"{ours}.mlp"


def _pairs(config: Config) -> list[_Pair]:
    kinds: tuple[str, ...] = texts(config, "layers_block_type") or texts(config, "layer_types")
    if not kinds:
        kinds = tuple(str(config.get("hybrid_override_pattern") or "ME*-"))
    pairs: list[_Pair] = []
    for at in range(len(kinds)):
        kind = _kind("layers_block_type", kinds, at)
        if kind in (_MAMBA, _ATTENTION):
            pairs.append(_Pair(at, kind, None))
        elif pairs and pairs[-1] == _Pair(at - 1, pairs[-1].mixer, None):
            pairs[-1] = replace(pairs[-1], mlp=kind)
        else:
            raise ModelFactsError(
                f"config.json: layer {at} is an MLP without a mixer before it, which is not "
                "supported; supported: an MLP or experts behind each mixer at most",
                field="layers_block_type",
            )
    return pairs


def _kind(key: str, kinds: tuple[str, ...], index: int) -> str:
    said = kinds[index] if index < len(kinds) else "absent"
    kind = _KINDS.get(said, said)
    known = (_MAMBA, _ATTENTION) if key == "layer_types" else (_MAMBA, _ATTENTION, _MLP, _EXPERTS)
    if kind not in known:
        raise ModelFactsError(
            f"config.json: {key}[{index}] is {kind!r}; known: {', '.join(known)}", field=key
        )
    return kind


def _nemotron_attention(config: Config) -> GroupedAttention:
    bias = flag(config, "attention_bias")
    attention = grouped(config, qkv_bias=bias, output_bias=bias, head_dim=128)
    return structs.replace(attention, rope=NO_ROPE)


def _nemotron_mamba(config: Config) -> StateAttention:
    return _mixer(
        config,
        StateNet(
            kind=StateKind.MAMBA2,
            key_heads=positive(config, "n_groups", default=8),
            value_heads=positive(config, "mamba_num_heads", default=128),
            key_dim=positive(config, "ssm_state_size", default=128),
            value_dim=positive(config, "mamba_head_dim", default=64),
            conv_width=positive(config, "conv_kernel", default=4),
            conv_bias=flag(config, "use_conv_bias", default=True),
            bias=flag(config, "use_bias"),
        ),
    )


def _nemotron_experts(config: Config) -> Experts:
    if config.get("moe_latent_size") is not None:
        raise ModelFactsError(
            "config.json: moe_latent_size, experts that compute with less than the hidden size, is "
            "not supported; supported: experts of the hidden size (null)",
            field="moe_latent_size",
        )
    return Experts(
        count=positive(config, "n_routed_experts", default=8),
        per_token=positive(config, "num_experts_per_tok", default=2),
        intermediate_size=positive(config, "moe_intermediate_size", default=7688),
        shared_intermediate_size=positive(
            config, "moe_shared_expert_intermediate_size", default=7688
        ),
        router_correction=True,
    )


def _is_open(limit: Sequence[object]) -> bool:
    """Return whether a range of steps is from 0 to infinity, as JSON or transformers writes it."""
    endless = (float("inf"), "Infinity", {"__float__": "Infinity"})
    return len(limit) == 2 and limit[0] == 0 and limit[1] in endless


def _mixer(config: Config, net: StateNet) -> StateAttention:
    """Describe a mixer. Raises ModelFactsError for one that is computed otherwise."""
    if net.value_heads % net.key_heads:
        raise ModelFactsError(
            f"config.json: {net.key_heads} groups do not divide the {net.value_heads} heads of the "
            "Mamba-2 layers; use the config.json that came with the weights",
            field="n_groups",
        )
    limit = config.get("time_step_limit")
    if limit is not None and (not isinstance(limit, (list, tuple)) or not _is_open(limit)):
        raise ModelFactsError(
            f"config.json: time_step_limit {limit!r} is not supported; supported: from 0 to "
            "infinity",
            field="time_step_limit",
        )
    if config.get("mamba_hidden_act", "silu") != "silu":
        raise ModelFactsError(
            f"config.json: mamba_hidden_act {config['mamba_hidden_act']!r} is not supported; "
            "supported: silu",
            field="mamba_hidden_act",
        )
    return StateAttention(net=net)
