"""Shared readers of config.json for families of models: heads, masks, kinds of layers. Pure.

An absent key means the default of transformers' configuration class of the family, so callers pass
defaults.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

from atom.sizing.attention.kinds import GroupedAttention, Heads, Matrices
from atom.sizing.config_fields import Config, flag, positive, texts
from atom.sizing.errors import ModelFactsError
from atom.sizing.families.checkpoint_names import NamePairs
from atom.sizing.layers import (
    PLAIN_BLOCK,
    EncoderFacts,
    ExpertsBlock,
    FallbackFacts,
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


class Head(enum.Enum):
    """The relation of the head's matrix to the embedding's."""

    NO_MATRIX = enum.auto()  # of an encoder, which gives no tokens

    UNTIED_BY_DEFAULT = enum.auto()  # unless config.json states otherwise
    TIED_BY_DEFAULT = enum.auto()  # unless config.json states otherwise
    NEVER_TIED = enum.auto()  # whatever config.json states


@dataclass(frozen=True, slots=True)
class ActivationField:
    """The key of config.json that names the activation, and the name if it is absent."""

    key: str = "hidden_act"
    default: str = "silu"


@dataclass(frozen=True, slots=True)
class DraftHead:
    """The differences of a model that only drafts. vocabulary_key: of config.json; joined_states:
    hidden states of the target model that it joins into its own."""

    vocabulary_key: str
    joined_states: int


@dataclass(frozen=True, slots=True)
class StoredNames:
    """Names of a checkpoint that differ from the engine's. modules: of transformers' modules that
    differ from the checkpoint's; turned_experts: transformers' matrices of all experts have inputs
    first, which PEFT does not know."""

    names: Callable[[Config], NamePairs] = plain_names
    modules: NamePairs = ()
    turned_experts: bool = False


@dataclass(frozen=True, slots=True)
class MtpLayers:
    """The layers that predict further tokens. key: their number in config.json, and default if it
    is absent; prefix: of their names, "" if their numbers continue the model's; layer: reads the
    first of them if it differs from the model's last, and is the only one that drafts; alias: its
    name in lists of unquantised modules."""

    key: str = "num_nextn_predict_layers"
    default: int = 0
    prefix: str = ""
    layer: Callable[[Config], LayerFacts] | None = None
    alias: str = ""


@dataclass(frozen=True, slots=True)
class Family:
    """The readers and names of a family. `layer` reads layer i; `fields` renames the fields of a
    config.json to the usual names; `experts_block`: the experts' module in a checkpoint; `draft`:
    of a model that only drafts, None for other models; `encoder`: reads the parts of a text encoder
    beside its layers, None for decoders; `fallback`: bounds the weights of a model that a class of
    transformers computes, None for a family."""

    layer: ReadLayer
    head: Head = Head.UNTIED_BY_DEFAULT
    experts_block: ExpertsBlock = PLAIN_BLOCK
    activation: ActivationField = ActivationField()
    fields: Callable[[Config], Config] = plain_fields
    stored: StoredNames = StoredNames()
    mtp: MtpLayers = MtpLayers()
    draft: DraftHead | None = None
    encoder: Callable[[Config], EncoderFacts] | None = None
    fallback: Callable[[Config], FallbackFacts] | None = None


@dataclass(frozen=True, slots=True)
class Architecture:
    """Declare an architecture. name: in config.json; model_type: of a config.json without
    `architectures`; label: the model's common name; module: below `atom.models`, with
    `spec(config)`; family: readers of its layers and names.

    - `gguf`: llama.cpp's name of it, "" if single-file checkpoints of it are not read.
    - `written_by`: the methods whose quantised checkpoints are read; empty for all of them.
    - `silu_alone`: its hidden_act is that of convolutions, gates and experts too, which know silu.
    - `mtp_lacking`: the reason why its own layers do not draft, "" if they may.
    """

    name: str
    model_type: str
    label: str
    module: str
    family: Family
    gguf: str = ""
    written_by: tuple[str, ...] = ()
    silu_alone: bool = False
    mtp_lacking: str = ""


def ties_head(family: Family, config: Config) -> bool:
    """Return whether the head is the embedding by the config.json of a family's decoder."""
    if family.head in (Head.NEVER_TIED, Head.NO_MATRIX):
        return family.head is Head.NO_MATRIX
    default = family.head is Head.TIED_BY_DEFAULT
    return flag(family.fields(config), "tie_word_embeddings", default=default)


def grouped(
    config: Config,
    *,
    qkv_bias: bool = False,
    output_bias: bool = False,
    head_dim: int | None = None,
) -> GroupedAttention:
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
    return GroupedAttention(
        heads=Heads(heads, kv_heads, positive(config, "head_dim", default=default)),
        matrices=Matrices(qkv_bias=qkv_bias, output_bias=output_bias),
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
