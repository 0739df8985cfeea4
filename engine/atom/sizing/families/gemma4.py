"""Layers of Gemma 4: layers with full attention have another head size. The small models have an
extra input per layer, and layers that attend to another layer's keys; the model with experts has an
MLP beside them."""

from __future__ import annotations

from collections.abc import Mapping

from atom.sizing.attention.kinds import (
    GroupedAttention,
    Matrices,
    QkNorm,
    Rope,
    SharedKvAttention,
    Values,
)
from atom.sizing.config_fields import Config, count, flag, positive
from atom.sizing.errors import ModelFactsError
from atom.sizing.families.checkpoint_names import NamePairs
from atom.sizing.families.reading import grouped, slides
from atom.sizing.layers import Experts, LayerFacts, MlpFacts
from atom.sizing.mask_rule import CAUSAL, sliding_window

_INPUTS = (
    ("model.embed_tokens_per_layer", "model.per_layer_inputs.embed_tokens"),
    ("model.per_layer_model_projection", "model.per_layer_inputs.projection"),
    ("model.per_layer_projection_norm", "model.per_layer_inputs.norm"),
)
_PATTERN = 6  # every sixth layer attends in full


def gemma4(config: Config, index: int) -> LayerFacts:
    """Read a layer of Gemma 4; the last layer has full attention."""
    if config.get("use_bidirectional_attention") == "all":
        raise ModelFactsError(
            "config.json: use_bidirectional_attention is 'all': attention to tokens behind a query "
            "is not supported; supported: a Gemma 4 that generates, which has none of it",
            field="use_bidirectional_attention",
        )
    target = _kv_sharing_target(config, index)
    own = count(config, "hidden_size_per_layer_input", default=256)
    experts = _experts(config)
    wide = target is not None and flag(config, "use_double_wide_mlp")
    return LayerFacts(
        attention=_attention(config, index, target),
        mlp=MlpFacts(
            intermediate_size=positive(config, "intermediate_size") * (2 if wide else 1),
            experts=experts,
        ),
        norms=4 + (3 if experts else 0) + (1 if own else 0),
        output_factor=True,
        per_layer_input=own,
    )


def gemma4_names(config: Config) -> NamePairs:
    """Return the checkpoint's names of inputs of each layer, router and experts, which are not in
    separate modules there."""
    return (*_INPUTS, *_experts_names(config))


def _experts_names(config: Config) -> NamePairs:
    if not flag(config, "enable_moe_block"):
        return ()
    return tuple(
        (f"model.layers.{index}.{theirs}", f"model.layers.{index}.{ours}")
        for index in range(positive(config, "num_hidden_layers"))
        for theirs, ours in (("router.proj", "moe.router"), ("experts", "moe.experts"))
    )


def per_layer_vocab_size(config: Config) -> int:
    """Read how many tokens have an input of each layer's own."""
    tokens = positive(config, "vocab_size")
    size = positive(config, "vocab_size_per_layer_input", default=262_144)
    if size < tokens:
        raise ModelFactsError(
            f"config.json: vocab_size_per_layer_input is {size}, fewer than the {tokens} tokens of "
            "vocab_size; use the config.json that came with the weights",
            field="vocab_size_per_layer_input",
        )
    return size


def _attention(
    config: Config, index: int, target: int | None
) -> GroupedAttention | SharedKvAttention:
    windowed = _is_windowed(config, index)
    plain = grouped({**config, **({} if windowed else _in_full(config, index))}, head_dim=256)
    window = sliding_window(positive(config, "sliding_window", default=512))
    bias = flag(config, "attention_bias")
    mask, rope = window if windowed else CAUSAL, Rope("a window" if windowed else "all tokens")
    matrices = Matrices(qkv_bias=bias, output_bias=bias)
    if target is not None:
        return SharedKvAttention(
            heads=plain.heads,
            mask=mask,
            rope=rope,
            target=target,
            qk_norm=QkNorm.HEADS,
            matrices=matrices,
        )
    are_keys = not windowed and flag(config, "attention_k_eq_v")
    return GroupedAttention(
        heads=plain.heads,
        mask=mask,
        rope=rope,
        qk_norm=QkNorm.HEADS,
        matrices=matrices,
        values=Values(are_keys=are_keys, normed=True),
    )


def _is_windowed(config: Config, index: int) -> bool:
    last = index == positive(config, "num_hidden_layers") - 1
    return not last and slides(config, index, default=bool((index + 1) % _PATTERN))


def _kv_sharing_target(config: Config, index: int) -> int | None:
    """Return the last layer of the same kind that has its own keys; None for a layer with its own
    keys."""
    shared = count(config, "num_kv_shared_layers")
    first = positive(config, "num_hidden_layers") - shared
    if not shared or index < first:
        return None
    kind = _is_windowed(config, index)
    for target in reversed(range(max(first, 0))):
        if _is_windowed(config, target) == kind:
            return target
    raise ModelFactsError(
        f"config.json: num_kv_shared_layers is {shared}, and layer {index} has no layer of its "
        f"kind before layer {first} whose keys it could attend to; use the config.json that came "
        "with the weights",
        field="num_kv_shared_layers",
    )


def _experts(config: Config) -> Experts | None:
    if not flag(config, "enable_moe_block"):
        return None
    return Experts(
        count=positive(config, "num_experts"),
        per_token=positive(config, "top_k_experts"),
        intermediate_size=positive(config, "moe_intermediate_size"),
        router_scales=True,
    )


def _in_full(config: Config, index: int) -> dict[str, object]:
    """Return the heads of a layer with full attention, in either spelling: the published one, or
    transformers'."""
    layers = config.get("per_layer_config")
    own = _of_layer(layers, index) if isinstance(layers, Mapping) else None
    if isinstance(own, Mapping):
        return {str(key): value for key, value in own.items()}
    heads: dict[str, object] = {"head_dim": config.get("global_head_dim", 512)}
    if flag(config, "attention_k_eq_v") and config.get("num_global_key_value_heads") is not None:
        heads["num_key_value_heads"] = config["num_global_key_value_heads"]
    return heads


def _of_layer(layers: Mapping[str, object], index: int) -> object:
    """Return a layer's own value. Keys are layer numbers, padded to the width of the largest."""
    numbered = (own for key, own in layers.items() if key.isdecimal() and int(key) == index)
    return next(numbered, None)
