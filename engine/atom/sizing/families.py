"""The layers of every model family that can be sized, read from config.json. Pure.

One function per family gives layer i; what a key means when it is absent is what transformers'
configuration class of that family makes of it. A family that is not here (a hybrid with state
space or linear attention, a multimodal wrapper) is an error: it is never sized by a formula for
others. Whether an engine runs a family is said in engine_support.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from atom.sizing.config_fields import Config, count, flag, optional, positive, texts
from atom.sizing.errors import ModelFactsError, UnknownFamilyError
from atom.sizing.layers import (
    PLAIN_BLOCK,
    AttentionFacts,
    Experts,
    ExpertsBlock,
    Latent,
    LayerFacts,
    MlpFacts,
    Rope,
    Stacking,
)
from atom.sizing.mask_rule import CAUSAL, MaskRule, chunked, sliding_window

# transformers' classes fix these where config.json does not.
_QWEN3_HEAD_DIM = 128
_GEMMA_HEAD_DIM = 256
_DEFAULT_WINDOW = 4096
_GPT_OSS_WINDOW = 128
_GEMMA3_PATTERN = 6
_MIXTRAL_BLOCK = ExpertsBlock(name="block_sparse_moe", matrices=("w1", "w3", "w2"))
_GPT_OSS_BLOCK = ExpertsBlock(router="router", stacking=Stacking.IN_TURN, stacked_by=("mxfp4",))
_LLAMA4_BLOCK = ExpertsBlock(
    name="feed_forward",
    dense="feed_forward",
    router="router",
    shared="shared_expert",
    stacking=Stacking.SIDE_BY_SIDE,
    stacked_by=("fbgemm_fp8",),
    parted_by=("compressed-tensors", "awq", "gptq"),
)
_LLAMA4_CHUNK, _LLAMA4_WIDTH, _LLAMA4_DENSE_WIDTH = 8192, 8192, 16_384

ReadLayer = Callable[[Config, int], LayerFacts]


@dataclass(frozen=True, slots=True)
class Family:
    """Describe how to read a family. `tied`: the head is the embedding unless config.json says.

    `joined_states`: hidden states of the target model that a draft model joins into its own.
    """

    layer: ReadLayer
    tied: bool = False
    experts_block: ExpertsBlock = PLAIN_BLOCK
    activation_key: str = "hidden_act"
    vocabulary_key: str = "vocab_size"
    joined_states: int = 0


def family_of(config: Config) -> tuple[str, Family]:
    """Architecture and family of a config.json; raises ModelFactsError or UnknownFamilyError."""
    value = config.get("architectures")
    families = FAMILIES | DRAFT_FAMILIES
    known = ", ".join(families)
    if not isinstance(value, (list, tuple)) or len(value) != 1:
        raise ModelFactsError(
            f"config.json: architectures must be a list of one name, got {value!r}; known: {known}",
            field="architectures",
        )
    name = str(value[0])
    if name not in families:
        raise UnknownFamilyError(name, known)
    return name, families[name]


def _llama(config: Config, index: int) -> LayerFacts:
    bias = flag(config, "attention_bias")
    mlp = MlpFacts(
        intermediate_size=positive(config, "intermediate_size"), bias=flag(config, "mlp_bias")
    )
    return LayerFacts(attention=_grouped(config, qkv_bias=bias, output_bias=bias), mlp=mlp)


def _eagle3(config: Config, index: int) -> LayerFacts:
    """A Llama layer over embedding and hidden state, each with a norm of its own."""
    layer = _llama(config, index)
    return replace(layer, attention=replace(layer.attention, reads_embedding=True), norms=3)


def _mistral(config: Config, index: int) -> LayerFacts:
    # Only an explicit null turns the window off.
    window = optional(config, "sliding_window") if "sliding_window" in config else _DEFAULT_WINDOW
    attention = replace(_grouped(config), mask=sliding_window(window))
    return LayerFacts(attention=attention, mlp=_dense(config))


def _mixtral(config: Config, index: int) -> LayerFacts:
    mask = sliding_window(optional(config, "sliding_window"))
    attention = replace(_grouped(config), mask=mask)
    experts = Experts(
        count=positive(config, "num_local_experts", default=8),
        per_token=positive(config, "num_experts_per_tok", default=2),
        intermediate_size=positive(config, "intermediate_size"),
    )
    return LayerFacts(attention=attention, mlp=MlpFacts(experts=experts))


def _qwen2(config: Config, index: int) -> LayerFacts:
    attention = _grouped(config, qkv_bias=True)
    attention = replace(attention, mask=_qwen_mask(config, index))
    return LayerFacts(attention=attention, mlp=_dense(config))


def _qwen3(config: Config, index: int) -> LayerFacts:
    attention = replace(_qwen3_attention(config), mask=_qwen_mask(config, index))
    return LayerFacts(attention=attention, mlp=_dense(config))


def _qwen3_moe(config: Config, index: int) -> LayerFacts:
    window = None
    if flag(config, "use_sliding_window"):
        window = positive(config, "sliding_window", default=_DEFAULT_WINDOW)
    attention = replace(_qwen3_attention(config), mask=sliding_window(window))
    if _is_dense(config, index):
        return LayerFacts(attention=attention, mlp=_dense(config))
    experts = Experts(
        count=_expert_count(config, default=128),
        per_token=positive(config, "num_experts_per_tok", default=8),
        intermediate_size=positive(config, "moe_intermediate_size"),
    )
    return LayerFacts(attention=attention, mlp=MlpFacts(experts=experts))


def _qwen2_moe(config: Config, index: int) -> LayerFacts:
    """Read a layer of Qwen2-MoE, whose layers slide, where they do, in turn: every second one of
    those below the first that attends in full."""
    attention = _grouped(config, qkv_bias=flag(config, "qkv_bias", default=True))
    if flag(config, "use_sliding_window"):
        windowed = index % 2 == 0 and index < count(config, "max_window_layers", default=28)
        if _slides(config, index, default=windowed):
            window = positive(config, "sliding_window", default=_DEFAULT_WINDOW)
            attention = replace(attention, mask=sliding_window(window))
    if _is_dense(config, index):
        return LayerFacts(attention=attention, mlp=_dense(config))
    experts = Experts(
        count=_expert_count(config, default=60),
        per_token=positive(config, "num_experts_per_tok", default=4),
        intermediate_size=positive(config, "moe_intermediate_size"),
        shared_intermediate_size=positive(config, "shared_expert_intermediate_size"),
        shared_gate=True,
    )
    return LayerFacts(attention=attention, mlp=MlpFacts(experts=experts))


def _glm4_moe(config: Config, index: int) -> LayerFacts:
    attention = _grouped(config, qkv_bias=flag(config, "attention_bias"))
    attention = replace(attention, qk_norm=flag(config, "use_qk_norm"))
    return LayerFacts(attention=attention, mlp=_deepseek_mlp(config, index, dense=1))


def _deepseek_v2(config: Config, index: int) -> LayerFacts:
    mlp = _deepseek_mlp(config, index, dense=0, correction=False)
    return LayerFacts(attention=_latent_attention(config), mlp=mlp)


def _deepseek_v3(config: Config, index: int) -> LayerFacts:
    mlp = _deepseek_mlp(config, index, dense=3)
    return LayerFacts(attention=_latent_attention(config), mlp=mlp)


def _latent_attention(config: Config) -> AttentionFacts:
    heads = positive(config, "num_attention_heads")
    bias = flag(config, "attention_bias")
    latent = _latent(config)
    return AttentionFacts(
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=latent.nope_dim + latent.rope_dim,
        latent=latent,
        qkv_bias=bias,
        output_bias=bias,
    )


def _deepseek_v32(config: Config, index: int) -> LayerFacts:
    layer = _deepseek_v3(config, index)
    assert layer.attention.latent is not None
    latent = replace(
        layer.attention.latent,
        index_heads=positive(config, "index_n_heads", default=64),
        index_dim=positive(config, "index_head_dim", default=128),
        index_top_k=positive(config, "index_topk", default=2048),
    )
    return replace(layer, attention=replace(layer.attention, latent=latent))


def _gpt_oss(config: Config, index: int) -> LayerFacts:
    bias = flag(config, "attention_bias", default=True)
    windowed = index % 2 == 0
    window = optional(config, "sliding_window") if "sliding_window" in config else _GPT_OSS_WINDOW
    attention = replace(
        _grouped(config, qkv_bias=bias, output_bias=bias, head_dim=64),
        mask=sliding_window(window) if _slides(config, index, default=windowed) else CAUSAL,
        sinks=True,
    )
    experts = Experts(
        count=positive(config, "num_local_experts", default=128),
        per_token=positive(config, "num_experts_per_tok", default=4),
        intermediate_size=positive(config, "intermediate_size"),
        bias=True,
        router_bias=True,
    )
    return LayerFacts(attention=attention, mlp=MlpFacts(experts=experts))


def _llama4(config: Config, index: int) -> LayerFacts:
    bias = flag(config, "attention_bias")
    attention = _grouped(config, qkv_bias=bias, output_bias=bias, head_dim=128)
    if _is_narrow(config, index, "chunked_attention", default=ropes(config, index)):
        chunk = positive(config, "attention_chunk_size", default=_LLAMA4_CHUNK)
        attention = replace(attention, mask=chunked(chunk))
    if not ropes(config, index):
        warms = config.get("attn_temperature_tuning")  # a number in the first checkpoints
        still = Rope("none", turns=False, warms=warms is None or bool(warms))
        attention = replace(attention, rope=still)
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


def ropes(config: Config, index: int) -> bool:
    """Return whether layer `index` of a Llama 4 rotates queries and keys."""
    listed = _numbers(config, "no_rope_layers")
    if not listed:
        return bool((index + 1) % positive(config, "no_rope_layer_interval", default=4))
    if index >= len(listed):
        raise ModelFactsError(
            f"config.json: no_rope_layers names {len(listed)} layers, and there is a layer {index}",
            field="no_rope_layers",
        )
    return bool(listed[index])


def _is_llama4_mixture(config: Config, index: int) -> bool:
    if config.get("moe_layers") is not None:
        return index in _numbers(config, "moe_layers")
    return not (index + 1) % positive(config, "interleave_moe_layer_step", default=1)


def _gemma2(config: Config, index: int) -> LayerFacts:
    return _gemma(config, index, pattern=2, qk_norm=False)


def _gemma3(config: Config, index: int) -> LayerFacts:
    pattern = positive(config, "sliding_window_pattern", default=_GEMMA3_PATTERN)
    layer = _gemma(config, index, pattern=pattern, qk_norm=True)
    rope = Rope("all tokens" if layer.attention.mask == CAUSAL else "a window")
    return replace(layer, attention=replace(layer.attention, rope=rope))


def _gemma(config: Config, index: int, *, pattern: int, qk_norm: bool) -> LayerFacts:
    """Every `pattern`-th layer attends in full; four norms surround attention and MLP."""
    window = positive(config, "sliding_window", default=_DEFAULT_WINDOW)
    slides = _slides(config, index, default=bool((index + 1) % pattern))
    bias = flag(config, "attention_bias")
    attention = replace(
        _grouped(config, qkv_bias=bias, output_bias=bias, head_dim=_GEMMA_HEAD_DIM),
        mask=sliding_window(window) if slides else CAUSAL,
        qk_norm=qk_norm,
    )
    return LayerFacts(attention=attention, mlp=_dense(config), norms=4)


FAMILIES: dict[str, Family] = {
    "LlamaForCausalLM": Family(_llama),
    "Qwen3ForCausalLM": Family(_qwen3),
    "Qwen3MoeForCausalLM": Family(_qwen3_moe),
    "Qwen2ForCausalLM": Family(_qwen2),
    "Qwen2MoeForCausalLM": Family(_qwen2_moe, experts_block=ExpertsBlock(shared="shared_expert")),
    "MistralForCausalLM": Family(_mistral),
    "MixtralForCausalLM": Family(_mixtral, experts_block=_MIXTRAL_BLOCK),
    "DeepseekV2ForCausalLM": Family(_deepseek_v2),
    "DeepseekV3ForCausalLM": Family(_deepseek_v3),
    "DeepseekV32ForCausalLM": Family(_deepseek_v32),
    "Glm4MoeForCausalLM": Family(_glm4_moe),
    "GptOssForCausalLM": Family(_gpt_oss, experts_block=_GPT_OSS_BLOCK),
    "Llama4ForCausalLM": Family(_llama4, experts_block=_LLAMA4_BLOCK),
    "Gemma2ForCausalLM": Family(_gemma2, tied=True, activation_key="hidden_activation"),
    "Gemma3ForCausalLM": Family(_gemma3, tied=True, activation_key="hidden_activation"),
}

# Models that only draft for another: their embedding is the target's, their head a smaller one.
DRAFT_FAMILIES: dict[str, Family] = {
    "LlamaForCausalLMEagle3": Family(
        _eagle3, tied=True, vocabulary_key="draft_vocab_size", joined_states=3
    ),
}


def _grouped(
    config: Config,
    *,
    qkv_bias: bool = False,
    output_bias: bool = False,
    head_dim: int | None = None,
) -> AttentionFacts:
    """Grouped-query attention; `head_dim` where config.json has none, None for an even division."""
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


def _qwen3_attention(config: Config) -> AttentionFacts:
    bias = flag(config, "attention_bias")
    attention = _grouped(config, qkv_bias=bias, output_bias=bias, head_dim=_QWEN3_HEAD_DIM)
    return replace(attention, qk_norm=True)


def _latent(config: Config) -> Latent:
    return Latent(
        query_rank=optional(config, "q_lora_rank"),
        kv_rank=positive(config, "kv_lora_rank", default=512),
        nope_dim=positive(config, "qk_nope_head_dim", default=128),
        rope_dim=positive(config, "qk_rope_head_dim", default=64),
        value_dim=positive(config, "v_head_dim", default=128),
    )


def _dense(config: Config) -> MlpFacts:
    return MlpFacts(intermediate_size=positive(config, "intermediate_size"))


def _expert_count(config: Config, default: int) -> int:
    """Read num_experts, or num_local_experts as transformers 5 spells it."""
    key = "num_experts" if config.get("num_experts") is not None else "num_local_experts"
    return positive(config, key, default=default)


def _is_dense(config: Config, index: int) -> bool:
    """Return whether a layer of Qwen's mixtures has no experts."""
    step = positive(config, "decoder_sparse_step", default=1)
    return index in _numbers(config, "mlp_only_layers") or bool((index + 1) % step)


def _deepseek_mlp(config: Config, index: int, *, dense: int, correction: bool = True) -> MlpFacts:
    """Read a layer's MLP; `dense` layers have no experts where config.json does not say."""
    if index < count(config, "first_k_dense_replace", default=dense):
        return _dense(config)
    if index % positive(config, "moe_layer_freq", default=1):
        return _dense(config)
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


def _qwen_mask(config: Config, index: int) -> MaskRule:
    if not flag(config, "use_sliding_window"):
        return CAUSAL
    window = positive(config, "sliding_window", default=_DEFAULT_WINDOW)
    first = count(config, "max_window_layers", default=28)
    slides = _slides(config, index, default=index >= first)
    return sliding_window(window) if slides else CAUSAL


def _slides(config: Config, index: int, *, default: bool) -> bool:
    return _is_narrow(config, index, "sliding_attention", default=default)


def _is_narrow(config: Config, index: int, narrow: str, *, default: bool) -> bool:
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


def _numbers(config: Config, key: str) -> tuple[int, ...]:
    value = config.get(key)
    return tuple(int(item) for item in value) if isinstance(value, (list, tuple)) else ()
