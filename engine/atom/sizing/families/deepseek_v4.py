"""Layers of DeepSeek V4: a window beside entries that each sum up 4 or 128 tokens, or a window
alone; several residual streams; experts, which a table selects by token in the first layers."""

from __future__ import annotations

from collections.abc import Mapping

from atom.sizing.attention.compressed import Compressed
from atom.sizing.attention.indexer import Indexer
from atom.sizing.attention.kinds import EntriesAttention, Heads, Rope
from atom.sizing.config_fields import Config, count, mapping, positive, texts
from atom.sizing.errors import ModelFactsError
from atom.sizing.families.checkpoint_names import NamePairs
from atom.sizing.families.reading import numbers
from atom.sizing.layers import Experts, LayerFacts, MlpFacts
from atom.sizing.mask_rule import sliding_window

_WINDOW, _SPARSE, _HEAVY = (
    "sliding_attention",
    "compressed_sparse_attention",
    "heavily_compressed_attention",
)
_KINDS = {0: _WINDOW, 4: _SPARSE, 128: _HEAVY}  # by compress_ratios
_RATES = {_SPARSE: 4, _HEAVY: 128}
_RATE_KEYS = {_SPARSE: "compress_rate_csa", _HEAVY: "compress_rate_hca"}
_EXPERTS, _EXPERTS_BY_TOKEN = "moe", "hash_moe"
_ROTARY_SHARE = 0.125
# Longer names before their parts, since earlier pairs take precedence.
_NAMES = (
    ("attn.norm", "self_attn.kv_norm"),
    ("attn", "self_attn"),
    ("ffn", "mlp"),
    ("attn_norm", "input_layernorm"),
    ("ffn_norm", "post_attention_layernorm"),
    ("attn_sink", "sinks"),
    *(
        (f"hc_{block}_{part}", f"{block}_hc.{part}")
        for block in ("attn", "ffn")
        for part in ("fn", "base", "scale")
    ),
    *((f"hc_head_{part}", f"hc_head.hc_{part}") for part in ("fn", "base", "scale")),
    ("indexer.weights_proj", "compressor.indexer.scorer.weights_proj"),
    ("indexer.wq_b", "compressor.indexer.q_b_proj"),
    ("indexer.compressor", "compressor.indexer"),
    ("compressor.norm", "compressor.kv_norm"),
    ("indexer.norm", "indexer.kv_norm"),
    ("compressor.wgate", "compressor.gate_proj"),
    ("indexer.wgate", "indexer.gate_proj"),
    ("ape", "position_bias"),
    ("wq_a", "q_a_proj"),
    ("wq_b", "q_b_proj"),
    ("wkv", "kv_proj"),
    ("wo_a", "o_a_proj"),
    ("wo_b", "o_b_proj"),
    ("q_norm", "q_a_norm"),
    ("gate.bias", "gate.e_score_correction_bias"),
    ("w1", "gate_proj"),
    ("w2", "down_proj"),
    ("w3", "up_proj"),
    ("embed", "embed_tokens"),
    ("head", "lm_head"),
)


def deepseek_v4_names(config: Config) -> NamePairs:
    return _NAMES


def deepseek_v4_fields(config: Config) -> Config:
    """Drop the layers that predict further tokens, since transformers has no model of them, and
    read the type of experts as a part of quantization_config, where later checkpoints have it."""
    fields = {**config, "num_nextn_predict_layers": 0}
    section, experts = mapping(config, "quantization_config"), config.get("expert_dtype")
    if section and experts is not None:
        fields["quantization_config"] = {"expert_dtype": experts, **section}
    return fields


def deepseek_v4(config: Config, index: int) -> LayerFacts:
    """Read a layer. Raises ModelFactsError for a field that transformers' model does not
    compute."""
    for key, only in (("mlp_bias", False), ("attention_bias", False), ("n_shared_experts", 1)):
        if config.get(key) not in (None, only):
            raise ModelFactsError(
                f"config.json: {key} is {config[key]!r}; supported of a DeepSeek V4: {only!r}",
                field=key,
            )
    kind = _kind(config, index)
    head_dim = positive(config, "head_dim", default=512)
    window = positive(config, "sliding_window", default=128)
    return LayerFacts(
        attention=EntriesAttention(
            heads=Heads(positive(config, "num_attention_heads", default=64), 1, head_dim),
            mask=sliding_window(window),
            rope=Rope("windows" if kind == _WINDOW else "entries"),
            compressed=_compressed(config, kind, head_dim),
        ),
        mlp=MlpFacts(experts=_experts(config, index)),
        streams=positive(config, "hc_mult", default=4),
    )


def _compressed(config: Config, kind: str, head_dim: int) -> Compressed:
    sparse = kind == _SPARSE
    heads = positive(config, "num_attention_heads", default=64)
    groups = positive(config, "o_groups", default=8)
    if heads % groups:
        raise ModelFactsError(
            f"config.json: o_groups {groups} does not divide the {heads} heads "
            "of num_attention_heads; use the config.json that came with the weights",
            field="o_groups",
        )
    return Compressed(
        query_rank=positive(config, "q_lora_rank", default=1024),
        rope_dim=rope_dim(config, head_dim),
        output_groups=groups,
        output_rank=positive(config, "o_lora_rank", default=1024),
        rate=_rate(config, kind),
        index=_indexer(config) if sparse else None,
    )


def _indexer(config: Config) -> Indexer:
    return Indexer(
        heads=positive(config, "index_n_heads", default=64),
        dim=positive(config, "index_head_dim", default=128),
        top_k=positive(config, "index_topk", default=512),
    )


def rope_dim(config: Config, head_dim: int) -> int:
    """Read how many elements of a head rotate, in either spelling."""
    share = config.get("partial_rotary_factor")
    if isinstance(share, int | float):
        rotating = int(head_dim * share)
    else:
        rotating = positive(config, "qk_rope_head_dim", default=int(head_dim * _ROTARY_SHARE))
    for kind, rope in mapping(config, "rope_parameters").items():
        own = rope.get("partial_rotary_factor") if isinstance(rope, Mapping) else None
        if isinstance(own, int | float) and int(head_dim * own) != rotating:
            raise ModelFactsError(
                f"config.json: rope_parameters.{kind}.partial_rotary_factor is {own!r}, and "
                f"{rotating} of a head's {head_dim} elements rotate by the other fields; use the "
                "config.json that came with the weights",
                field="rope_parameters",
            )
    return rotating


def _experts(config: Config, index: int) -> Experts:
    width = positive(config, "moe_intermediate_size", default=2048)
    kinds = texts(config, "mlp_layer_types")
    if kinds:
        kind = kinds[index] if index < len(kinds) else None
        if kind not in (_EXPERTS, _EXPERTS_BY_TOKEN):
            raise ModelFactsError(
                f"config.json: mlp_layer_types[{index}] is {kind!r}; known of a DeepSeek V4: "
                f"{_EXPERTS}, {_EXPERTS_BY_TOKEN}",
                field="mlp_layer_types",
            )
        by_token = kind == _EXPERTS_BY_TOKEN
    else:
        by_token = index < count(config, "num_hash_layers", default=3)
    return Experts(
        count=positive(config, "n_routed_experts", default=256),
        per_token=positive(config, "num_experts_per_tok", default=6),
        intermediate_size=width,
        shared_intermediate_size=width,
        router_correction=not by_token,
        by_token=by_token,
    )


def _kind(config: Config, index: int) -> str:
    """Return the layer's kind of attention: from layer_types, from compress_ratios, or as
    transformers' class defaults it."""
    kinds, ratios = texts(config, "layer_types"), numbers(config, "compress_ratios")
    if not kinds and ratios:
        kinds = tuple(_KINDS.get(ratio, str(ratio)) for ratio in ratios)
    if not kinds:
        return _SPARSE if index >= 2 and index % 2 else _HEAVY
    kind = kinds[index] if index < len(kinds) else None
    if kind not in _KINDS.values():
        key = "layer_types" if texts(config, "layer_types") else "compress_ratios"
        raise ModelFactsError(
            f"config.json: {key}[{index}] is {kind!r}; known of a DeepSeek V4: "
            f"{', '.join(_KINDS.values())} (of compress_ratios {', '.join(map(str, _KINDS))})",
            field=key,
        )
    assert kind is not None
    return kind


def _rate(config: Config, kind: str) -> int:
    if kind == _WINDOW:
        return 0
    own = config.get(_RATE_KEYS[kind])
    if own is None:
        rates = config.get("compress_rates")
        own = rates.get(kind) if isinstance(rates, Mapping) else None
    return positive({"compress_rates": own}, "compress_rates", default=_RATES[kind])
