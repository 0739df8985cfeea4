"""Layers of the families with experts, but DeepSeek's: Mixtral, Qwen's, gpt-oss, Llama 4 and
others."""

from __future__ import annotations

from dataclasses import replace

from msgspec import structs

from atom.sizing.attention.indexer import SpanIndexer
from atom.sizing.attention.kinds import GroupedAttention, QkNorm, Rope, Softmax, Values
from atom.sizing.config_fields import Config, count, flag, mapping, optional, positive, texts
from atom.sizing.errors import ModelFactsError
from atom.sizing.families.deepseek import deepseek_mlp
from atom.sizing.families.dense import DEFAULT_WINDOW, ernie4_5, hunyuan, qwen3_attention
from atom.sizing.families.reading import (
    dense_mlp,
    expert_count,
    grouped,
    is_dense,
    is_narrow,
    numbers,
    ropes,
    slides,
)
from atom.sizing.layers import Experts, LayerFacts, MlpFacts
from atom.sizing.mask_rule import CAUSAL, chunked, sliding_window

_GPT_OSS_WINDOW = 128
_LLAMA4_CHUNK, _LLAMA4_WIDTH, _LLAMA4_DENSE_WIDTH = 8192, 8192, 16_384


def mixtral(config: Config, index: int) -> LayerFacts:
    mask = sliding_window(optional(config, "sliding_window"))
    attention = structs.replace(grouped(config), mask=mask)
    experts = Experts(
        count=positive(config, "num_local_experts", default=8),
        per_token=positive(config, "num_experts_per_tok", default=2),
        intermediate_size=positive(config, "intermediate_size"),
    )
    return LayerFacts(attention=attention, mlp=MlpFacts(experts=experts))


def qwen3_moe(config: Config, index: int) -> LayerFacts:
    window = None
    if flag(config, "use_sliding_window"):
        window = positive(config, "sliding_window", default=DEFAULT_WINDOW)
    attention = structs.replace(qwen3_attention(config), mask=sliding_window(window))
    if is_dense(config, index):
        return LayerFacts(attention=attention, mlp=dense_mlp(config))
    experts = Experts(
        count=expert_count(config, default=128),
        per_token=positive(config, "num_experts_per_tok", default=8),
        intermediate_size=positive(config, "moe_intermediate_size"),
    )
    return LayerFacts(attention=attention, mlp=MlpFacts(experts=experts))


def qwen2_moe(config: Config, index: int) -> LayerFacts:
    """Read a layer of Qwen2-MoE. If layers have windows, every second layer below the first one
    with full attention has one."""
    attention = grouped(config, qkv_bias=flag(config, "qkv_bias", default=True))
    if flag(config, "use_sliding_window"):
        windowed = index % 2 == 0 and index < count(config, "max_window_layers", default=28)
        if slides(config, index, default=windowed):
            window = positive(config, "sliding_window", default=DEFAULT_WINDOW)
            attention = structs.replace(attention, mask=sliding_window(window))
    if is_dense(config, index):
        return LayerFacts(attention=attention, mlp=dense_mlp(config))
    experts = Experts(
        count=expert_count(config, default=60),
        per_token=positive(config, "num_experts_per_tok", default=4),
        intermediate_size=positive(config, "moe_intermediate_size"),
        shared_intermediate_size=positive(config, "shared_expert_intermediate_size"),
        shared_gate=True,
    )
    return LayerFacts(attention=attention, mlp=MlpFacts(experts=experts))


def glm4_moe(config: Config, index: int) -> LayerFacts:
    attention = grouped(config, qkv_bias=flag(config, "attention_bias"))
    attention = structs.replace(
        attention, qk_norm=QkNorm.HEADS if flag(config, "use_qk_norm") else QkNorm.NONE
    )
    return LayerFacts(attention=attention, mlp=deepseek_mlp(config, index, dense=1))


def gpt_oss(config: Config, index: int) -> LayerFacts:
    bias = flag(config, "attention_bias", default=True)
    windowed = index % 2 == 0
    window = optional(config, "sliding_window") if "sliding_window" in config else _GPT_OSS_WINDOW
    attention = structs.replace(
        grouped(config, qkv_bias=bias, output_bias=bias, head_dim=64),
        mask=sliding_window(window) if slides(config, index, default=windowed) else CAUSAL,
        softmax=Softmax(sinks=True),
    )
    experts = Experts(
        count=positive(config, "num_local_experts", default=128),
        per_token=positive(config, "num_experts_per_tok", default=4),
        intermediate_size=positive(config, "intermediate_size"),
        bias=True,
        router_bias=True,
    )
    return LayerFacts(attention=attention, mlp=MlpFacts(experts=experts))


def llama4(config: Config, index: int) -> LayerFacts:
    bias = flag(config, "attention_bias")
    attention = grouped(config, qkv_bias=bias, output_bias=bias, head_dim=128)
    if is_narrow(config, index, "chunked_attention", default=ropes(config, index)):
        chunk = positive(config, "attention_chunk_size", default=_LLAMA4_CHUNK)
        attention = structs.replace(attention, mask=chunked(chunk))
    if not ropes(config, index):
        warms = config.get("attn_temperature_tuning")  # a number in the first checkpoints
        still = Rope("none", turns=False, warms=warms is None or bool(warms))
        attention = structs.replace(attention, rope=still)
    width = positive(config, "intermediate_size", default=_LLAMA4_WIDTH)
    if not _is_llama4_mixture(config, index):
        dense = positive(config, "intermediate_size_mlp", default=_LLAMA4_DENSE_WIDTH)
        return LayerFacts(attention=attention, mlp=MlpFacts(intermediate_size=dense))
    experts = Experts(
        count=positive(config, "num_local_experts", default=16),
        per_token=positive(config, "num_experts_per_tok", default=1),
        intermediate_size=width,
        shared_intermediate_size=width,
    )
    return LayerFacts(attention=attention, mlp=MlpFacts(experts=experts))


def _is_llama4_mixture(config: Config, index: int) -> bool:
    if config.get("moe_layers") is not None:
        return index in numbers(config, "moe_layers")
    return not (index + 1) % positive(config, "interleave_moe_layer_step", default=1)


def ernie4_5_moe(config: Config, index: int) -> LayerFacts:
    """Read a layer of ERNIE 4.5's mixtures; the first layers are dense."""
    if flag(config, "use_bias"):
        raise ModelFactsError(
            "config.json: use_bias true is not supported for Ernie4_5_MoeForCausalLM; supported: "
            "false, which published checkpoints have",
            field="use_bias",
        )
    layer = ernie4_5(config, index)
    attention = grouped(config, head_dim=_even_heads(config))
    layer = replace(layer, attention=attention)
    first = count(config, "moe_layer_start_index", default=1)
    last = config.get("moe_layer_end_index", -1)
    if index < first or (isinstance(last, int) and 0 <= last < index):
        return layer
    if (index + 1) % positive(config, "moe_layer_interval", default=1):
        return layer
    width = positive(config, "moe_intermediate_size", default=1536)
    experts = Experts(
        count=positive(config, "moe_num_experts", default=64),
        per_token=positive(config, "moe_k", default=6),
        intermediate_size=width,
        shared_intermediate_size=width * count(config, "moe_num_shared_experts", default=2),
        router_correction=True,
    )
    return replace(layer, mlp=MlpFacts(experts=experts))


def _even_heads(config: Config) -> int:
    even = positive(config, "hidden_size") // positive(config, "num_attention_heads")
    return positive(config, "head_dim", default=even)


def minimax_m2(config: Config, index: int) -> LayerFacts:
    attention = structs.replace(grouped(config, head_dim=128), qk_norm=QkNorm.WHOLE)
    experts = Experts(
        count=expert_count(config, default=256),
        per_token=positive(config, "num_experts_per_tok", default=8),
        intermediate_size=positive(config, "intermediate_size"),
        router_correction=True,
    )
    return LayerFacts(attention=attention, mlp=MlpFacts(experts=experts))


def minimax_m3(config: Config, index: int) -> LayerFacts:
    """Read a layer of MiniMax-M3, in either spelling: its own, or transformers'."""
    attention = structs.replace(
        grouped(config, head_dim=128),
        qk_norm=QkNorm.HEADS,
        softmax=Softmax(index=_span_indexer(config, index)),
    )
    kinds, freq = texts(config, "mlp_layer_types"), numbers(config, "moe_layer_freq")
    if index < len(kinds):
        is_dense = kinds[index] == "dense"
    else:
        is_dense = index < len(freq) and not freq[index]
    if is_dense:
        width = positive(config, "dense_intermediate_size", default=12_288)
        return LayerFacts(attention=attention, mlp=MlpFacts(intermediate_size=width))
    experts = Experts(
        count=expert_count(config, default=128),
        per_token=positive(config, "num_experts_per_tok", default=4),
        intermediate_size=positive(config, "intermediate_size", default=3072),
        shared_intermediate_size=positive(config, "shared_intermediate_size", default=3072),
        router_correction=True,
    )
    return LayerFacts(attention=attention, mlp=MlpFacts(experts=experts))


def _span_indexer(config: Config, index: int) -> SpanIndexer | None:
    """Read a layer's indexer; None if the layer attends to all tokens."""
    said = mapping(config, "sparse_attention_config")
    kinds, freq = texts(config, "layer_types"), numbers(said, "sparse_attention_freq")
    if index < len(kinds):
        is_sparse = kinds[index] == "minimax_m3_sparse"
    else:
        is_sparse = index < len(freq) and bool(freq[index])
    if not is_sparse:
        return None
    for key, only in (
        ("use_sparse_attention", True),
        ("sparse_init_block", 0),
        ("sparse_score_type", "max"),
    ):
        if said.get(key) not in (None, only):
            raise ModelFactsError(
                f"config.json: sparse_attention_config.{key} is {said[key]!r}; supported of a "
                f"MiniMax-M3: {only!r}, as transformers computes it",
                field="sparse_attention_config",
            )
    heads, queries, keys = (
        _of_indexer(config, said, "index_n_heads", "sparse_num_index_heads", 4),
        positive(config, "num_attention_heads"),
        positive(config, "num_key_value_heads"),
    )
    if heads != keys:
        raise ModelFactsError(
            f"config.json: {heads} heads of the indexer (index_n_heads) select for {queries} heads "
            f"with {keys} keys (num_key_value_heads); supported: one head for each key",
            field="index_n_heads",
        )
    return SpanIndexer(
        heads=heads,
        dim=_of_indexer(config, said, "index_head_dim", "sparse_index_dim", 128),
        span=_of_indexer(config, said, "index_block_size", "sparse_block_size", 128),
        top_k=_of_indexer(config, said, "index_topk_blocks", "sparse_topk_blocks", 16),
        newest=_newest_spans(config, said),
    )


def _newest_spans(config: Config, said: Config) -> int:
    if said.get("sparse_local_block") is not None:
        return count(said, "sparse_local_block")
    return count(config, "index_local_blocks", default=1)


def _of_indexer(config: Config, said: Config, key: str, published: str, default: int) -> int:
    """Read a size of the indexer; the published spelling takes precedence, as in transformers."""
    if said.get(published) is not None:
        return positive(said, published)
    return positive(config, key, default=default)


def minimax_m3_fields(config: Config) -> Config:
    """Name the activation of the pointwise fallback, as transformers' class does: the gate itself
    is computed from swiglu_alpha and swiglu_limit."""
    return {**config, "hidden_act": "silu"}


def mimo_v2(config: Config, index: int) -> LayerFacts:
    """Read a layer of MiMo-V2-Flash, in either spelling: its own, or transformers'."""
    windowed = bool((index + 1) % 6) and index > 0
    pattern = numbers(config, "hybrid_layer_pattern")
    windowed = bool(pattern[index]) if index < len(pattern) else windowed
    attention = _mimo_attention(config, windowed=slides(config, index, default=windowed))
    kinds, freq = texts(config, "mlp_layer_types"), numbers(config, "moe_layer_freq")
    if index < len(kinds):
        is_dense = kinds[index] == "dense"
    else:
        is_dense = not freq[index] if index < len(freq) else index == 0
    if is_dense:
        return LayerFacts(attention=attention, mlp=dense_mlp(config))
    experts = Experts(
        count=positive(config, "n_routed_experts", default=256),
        per_token=positive(config, "num_experts_per_tok", default=8),
        intermediate_size=positive(config, "moe_intermediate_size", default=2048),
        router_correction=True,
    )
    return LayerFacts(attention=attention, mlp=MlpFacts(experts=experts))


def mimo_v2_mtp(config: Config) -> LayerFacts:
    """Read a layer that predicts further tokens: a window with sinks, and a dense MLP."""
    return LayerFacts(attention=_mimo_attention(config, windowed=True), mlp=dense_mlp(config))


def _mimo_attention(config: Config, *, windowed: bool) -> GroupedAttention:
    """Read the attention of a layer; one with a window has twice the KV heads, and sinks."""
    plain = grouped(config, qkv_bias=flag(config, "attention_bias"), head_dim=192)
    values = positive(config, "v_head_dim", default=128)
    if values > plain.head_dim:
        raise ModelFactsError(
            f"config.json: v_head_dim {values} is more than head_dim {plain.head_dim}, which is "
            "not supported; supported: values that are as wide as keys, or narrower",
            field="v_head_dim",
        )
    narrow = Values(narrow_dim=values if values < plain.head_dim else 0)
    attention = structs.replace(plain, values=narrow, rope=Rope("all tokens"))
    if not windowed:
        return attention
    before = optional(config, "sliding_window_size")  # tokens besides the query's own
    window = positive(config, "sliding_window", default=129) if before is None else before + 1
    heads = positive(config, "swa_num_key_value_heads", default=2 * plain.num_kv_heads)
    if plain.num_heads % heads:
        raise ModelFactsError(
            f"config.json: a layer with a window has {heads} KV heads (swa_num_key_value_heads, or "
            f"twice num_key_value_heads), which do not divide num_attention_heads "
            f"{plain.num_heads}; use the config.json that came with the weights",
            field="swa_num_key_value_heads",
        )
    return structs.replace(
        attention,
        heads=replace(plain.heads, kv_count=heads),
        mask=sliding_window(window),
        softmax=Softmax(sinks=True),
        rope=Rope("a window"),
    )


def hunyuan_moe(config: Config, index: int) -> LayerFacts:
    """Read a layer of Hunyuan's mixtures; each layer may have its own number of experts per
    token."""
    width, taken = positive(config, "intermediate_size"), config.get("moe_topk", 1)
    chosen = numbers(config, "moe_topk") if isinstance(taken, list | tuple) else None
    if chosen is not None and index >= len(chosen):
        raise ModelFactsError(
            f"config.json: moe_topk is of {len(chosen)} layers, and there is a layer {index}",
            field="moe_topk",
        )
    experts = Experts(
        count=expert_count(config, default=1),
        per_token=positive(config, "moe_topk", default=1) if chosen is None else chosen[index],
        intermediate_size=width,
        shared_intermediate_size=width,
    )
    return replace(hunyuan(config, index), mlp=MlpFacts(experts=experts))
