"""Shared readers of config.json for families of models: heads, masks, kinds of layers. Pure.

An absent key means the default of transformers' configuration class of the family, so callers pass
defaults.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from atom.sizing.config_fields import Config, flag, positive, texts
from atom.sizing.errors import ModelFactsError
from atom.sizing.families.checkpoint_names import NamePairs
from atom.sizing.layers import (
    PLAIN_BLOCK,
    AttentionFacts,
    ExpertsBlock,
    LayerFacts,
    MlpFacts,
)

ReadLayer = Callable[[Config, int], LayerFacts]


def plain_names(config: Config) -> NamePairs:
    """Return no pairs: the checkpoint's names are the engine's."""
    return ()


def plain_fields(config: Config) -> Config:
    """Return the config.json unchanged: its fields have the usual names."""
    return config


@dataclass(frozen=True, slots=True)
class Family:
    """The readers and names of a family. `tied`: the head is the embedding unless config.json
    states otherwise; not `ties`: the head is never the embedding, whatever config.json states.

    - `joined_states`: hidden states of the target model that a draft model joins into its own.
    - `fields`: renames the fields of a config.json to the usual names.
    - `names`: of a checkpoint's parts that differ from the engine's; `modules`: of transformers'
      modules that differ from the checkpoint's; `turned_experts`: transformers' matrices of all
      experts have inputs first, which PEFT does not know.
    - `mtp_key`: of config.json, the number of layers that predict further tokens, and `mtp_default`
      if it is absent; `mtp_prefix`: the prefix of their names, "" if their numbers continue the
      model's. `mtp_layer`: reads the first of these layers if it differs from the model's last, and
      is the only one that drafts; `mtp_alias`: its name in lists of unquantised modules.
    """

    layer: ReadLayer
    tied: bool = False
    ties: bool = True
    experts_block: ExpertsBlock = PLAIN_BLOCK
    activation_key: str = "hidden_act"
    activation: str = "silu"
    vocabulary_key: str = "vocab_size"
    joined_states: int = 0
    fields: Callable[[Config], Config] = plain_fields
    names: Callable[[Config], NamePairs] = plain_names
    modules: NamePairs = ()
    turned_experts: bool = False
    mtp_key: str = "num_nextn_predict_layers"
    mtp_default: int = 0
    mtp_prefix: str = ""
    mtp_layer: Callable[[Config], LayerFacts] | None = None
    mtp_alias: str = ""


def ties_head(family: Family, config: Config) -> bool:
    """Return whether the head is the embedding by the config.json of a family's decoder."""
    return family.ties and flag(family.fields(config), "tie_word_embeddings", default=family.tied)


def grouped(
    config: Config,
    *,
    qkv_bias: bool = False,
    output_bias: bool = False,
    head_dim: int | None = None,
) -> AttentionFacts:
    """Read grouped-query attention; `head_dim` if config.json has none, None for an even
    division."""
    heads = positive(config, "num_attention_heads")
    kv_heads = positive(config, "num_key_value_heads", default=heads)
    if heads % kv_heads:
        raise ModelFactsError(
            f"num_key_value_heads={kv_heads} does not divide num_attention_heads={heads}",
            field="num_key_value_heads",
        )
    default = head_dim or positive(config, "hidden_size") // heads
    return AttentionFacts(
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=positive(config, "head_dim", default=default),
        qkv_bias=qkv_bias,
        output_bias=output_bias,
    )


def dense_mlp(config: Config) -> MlpFacts:
    return MlpFacts(intermediate_size=positive(config, "intermediate_size"))


def expert_count(config: Config, default: int) -> int:
    """Read num_experts, or num_local_experts as transformers 5 spells it."""
    key = "num_experts" if config.get("num_experts") is not None else "num_local_experts"
    return positive(config, key, default=default)


def is_dense(config: Config, index: int) -> bool:
    """Return whether a layer of Qwen's mixtures has no experts."""
    step = positive(config, "decoder_sparse_step", default=1)
    return index in numbers(config, "mlp_only_layers") or bool((index + 1) % step)


def slides(config: Config, index: int, *, default: bool) -> bool:
    return is_narrow(config, index, "sliding_attention", default=default)


def is_narrow(config: Config, index: int, narrow: str, *, default: bool) -> bool:
    """Return whether a layer attends by the kind `narrow`, and not to everything."""
    kinds = texts(config, "layer_types")
    if not kinds:
        return default
    kind = kinds[index] if index < len(kinds) else None
    if kind not in ("full_attention", narrow):
        raise ModelFactsError(
            f"config.json: layer_types[{index}] is {kind!r}; known: full_attention, {narrow}",
            field="layer_types",
        )
    return kind == narrow


def ropes(config: Config, index: int) -> bool:
    """Return whether layer `index` of a Llama 4 or SmolLM3 rotates queries and keys."""
    listed = numbers(config, "no_rope_layers")
    if not listed:
        return bool((index + 1) % positive(config, "no_rope_layer_interval", default=4))
    if index >= len(listed):
        raise ModelFactsError(
            f"config.json: no_rope_layers names {len(listed)} layers, and there is a layer {index}",
            field="no_rope_layers",
        )
    return bool(listed[index])


def numbers(config: Config, key: str) -> tuple[int, ...]:
    value = config.get(key)
    return tuple(int(item) for item in value) if isinstance(value, (list, tuple)) else ()
