"""Layers of DeepSeek V2, V3 and V3.2, and of models built like them: latent attention, and experts
beside some that all tokens share."""

from __future__ import annotations

from dataclasses import replace

from atom.sizing.attention.indexer import Indexer, SharedIndexer
from atom.sizing.attention.kinds import Heads, Latent, LatentAttention
from atom.sizing.config_fields import Config, count, flag, optional, positive, texts
from atom.sizing.errors import ModelFactsError
from atom.sizing.families.reading import dense_mlp
from atom.sizing.layers import Experts, LayerFacts, MlpFacts


def deepseek_v2(config: Config, index: int) -> LayerFacts:
    mlp = deepseek_mlp(config, index, dense=0, correction=False)
    return LayerFacts(attention=latent_attention(config), mlp=mlp)


def deepseek_v3(config: Config, index: int) -> LayerFacts:
    mlp = deepseek_mlp(config, index, dense=3)
    return LayerFacts(attention=latent_attention(config), mlp=mlp)


def deepseek_v32(config: Config, index: int) -> LayerFacts:
    index_of = Indexer(
        heads=positive(config, "index_n_heads", default=64),
        dim=positive(config, "index_head_dim", default=128),
        top_k=positive(config, "index_topk", default=2048),
    )
    latent = replace(_read_latent(config), index=index_of)
    mlp = deepseek_mlp(config, index, dense=3)
    return LayerFacts(attention=_attention_over(config, latent), mlp=mlp)


def latent_attention(config: Config) -> LatentAttention:
    return _attention_over(config, _read_latent(config))


def _attention_over(config: Config, latent: Latent) -> LatentAttention:
    heads = positive(config, "num_attention_heads")
    bias = flag(config, "attention_bias")
    return LatentAttention(
        heads=Heads(heads, heads, latent.nope_dim + latent.rope_dim),
        latent=latent,
        down_bias=bias,
        output_bias=bias,
    )


def _read_latent(config: Config) -> Latent:
    return Latent(
        query_rank=optional(config, "q_lora_rank"),
        kv_rank=positive(config, "kv_lora_rank", default=512),
        nope_dim=positive(config, "qk_nope_head_dim", default=128),
        rope_dim=positive(config, "qk_rope_head_dim", default=64),
        value_dim=positive(config, "v_head_dim", default=128),
    )


def deepseek_mlp(config: Config, index: int, *, dense: int, correction: bool = True) -> MlpFacts:
    """Read a layer's MLP; `dense` layers have no experts if config.json gives no number."""
    if index < count(config, "first_k_dense_replace", default=dense):
        return dense_mlp(config)
    if index % positive(config, "moe_layer_freq", default=1):
        return dense_mlp(config)
    width = positive(config, "moe_intermediate_size")
    return MlpFacts(
        experts=Experts(
            count=positive(config, "n_routed_experts"),
            per_token=positive(config, "num_experts_per_tok"),
            intermediate_size=width,
            shared_intermediate_size=width * count(config, "n_shared_experts"),
            router_correction=correction,
        )
    )


def glm4_moe_lite(config: Config, index: int) -> LayerFacts:
    """Read a layer of GLM-4.7-Flash: DeepSeek's attention in other sizes, one dense layer."""
    latent = Latent(
        query_rank=optional(config, "q_lora_rank") if "q_lora_rank" in config else 768,
        kv_rank=positive(config, "kv_lora_rank", default=512),
        nope_dim=positive(config, "qk_nope_head_dim", default=192),
        rope_dim=positive(config, "qk_rope_head_dim", default=64),
        value_dim=positive(config, "v_head_dim", default=256),
    )
    attention = _attention_over(config, latent)
    return LayerFacts(attention=attention, mlp=glm_mlp(config, index, dense=1))


def glm_moe_dsa(config: Config, index: int) -> LayerFacts:
    """Read a layer of GLM-5: DeepSeek-V3.2's in other sizes; some layers have no indexer."""
    shared, top_k = _shares_index(config, index), positive(config, "index_topk", default=2048)
    latent = Latent(
        query_rank=optional(config, "q_lora_rank") if "q_lora_rank" in config else 2048,
        kv_rank=positive(config, "kv_lora_rank", default=512),
        nope_dim=positive(config, "qk_nope_head_dim", default=192),
        rope_dim=positive(config, "qk_rope_head_dim", default=64),
        value_dim=positive(config, "v_head_dim", default=256),
        index=SharedIndexer(top_k) if shared else _glm_indexer(config, top_k),
    )
    attention = _attention_over(config, latent)
    return LayerFacts(attention=attention, mlp=glm_mlp(config, index, dense=3))


def _glm_indexer(config: Config, top_k: int) -> Indexer:
    heads = positive(config, "index_n_heads", default=32)
    return Indexer(heads, positive(config, "index_head_dim", default=128), top_k)


def glm_mlp(config: Config, index: int, *, dense: int) -> MlpFacts:
    kinds = texts(config, "mlp_layer_types")
    if kinds:
        is_dense = index < len(kinds) and kinds[index] == "dense"
        config = {**config, "first_k_dense_replace": index + 1 if is_dense else 0}
    return deepseek_mlp(config, index, dense=dense)


def _shares_index(config: Config, index: int) -> bool:
    """Return whether a layer attends to what another's indexer has chosen: by a list, a pattern of
    letters, or how many layers have one indexer and from which on."""
    kinds, pattern = texts(config, "indexer_types"), config.get("index_topk_pattern")
    if not kinds and isinstance(pattern, str):
        kinds = tuple({"F": "full", "S": "shared"}.get(each, each) for each in pattern)
    elif not kinds and pattern is not None:
        kinds = texts(config, "index_topk_pattern")
    if not kinds:
        every = max(1, count(config, "index_topk_freq", default=1))
        first = count(config, "index_skip_topk_offset", default=2)
        return max(index - first + 1, 0) % every > 0
    kind = kinds[index] if index < len(kinds) else None
    if kind not in ("full", "shared") or (kind == "shared" and index == 0):
        raise ModelFactsError(
            f"config.json: indexer_types[{index}] is {kind!r}; known: full, and behind a layer of "
            "that kind shared",
            field="indexer_types",
        )
    return kind == "shared"
