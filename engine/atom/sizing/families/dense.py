"""Layers of the families without experts: Llama and what followed it."""

from __future__ import annotations

from dataclasses import replace

from msgspec import structs

from atom.sizing.attention.kinds import NO_ROPE, GroupedAttention, Matrices, QkNorm, Rope
from atom.sizing.config_fields import Config, count, flag, optional, positive
from atom.sizing.errors import ModelFactsError
from atom.sizing.families.reading import dense_mlp, grouped, ropes, slides
from atom.sizing.layers import LayerFacts, MlpFacts
from atom.sizing.mask_rule import CAUSAL, MaskRule, sliding_window

DEFAULT_WINDOW = 4096
# transformers' classes fix these where config.json does not.
_QWEN3_HEAD_DIM = 128
_GEMMA_HEAD_DIM = 256
_GEMMA3_PATTERN = 6


def llama(config: Config, index: int) -> LayerFacts:
    mlp = MlpFacts(
        intermediate_size=positive(config, "intermediate_size"), bias=flag(config, "mlp_bias")
    )
    return LayerFacts(attention=_llama_attention(config), mlp=mlp)


def _llama_attention(config: Config) -> GroupedAttention:
    bias = flag(config, "attention_bias")
    return grouped(config, qkv_bias=bias, output_bias=bias)


def eagle3(config: Config, index: int) -> LayerFacts:
    """Read EAGLE-3's layer: a Llama layer over embedding and hidden state, each with its own
    norm."""
    attention = _llama_attention(config)
    matrices = replace(attention.matrices, reads_embedding=True)
    attention = structs.replace(attention, matrices=matrices)
    return replace(llama(config, index), attention=attention, norms=3)


def mistral(config: Config, index: int) -> LayerFacts:
    # Only an explicit null turns the window off.
    window = optional(config, "sliding_window") if "sliding_window" in config else DEFAULT_WINDOW
    attention = structs.replace(grouped(config), mask=sliding_window(window))
    return LayerFacts(attention=attention, mlp=dense_mlp(config))


def qwen2(config: Config, index: int) -> LayerFacts:
    attention = grouped(config, qkv_bias=True)
    attention = structs.replace(attention, mask=qwen_mask(config, index))
    return LayerFacts(attention=attention, mlp=dense_mlp(config))


def qwen3(config: Config, index: int) -> LayerFacts:
    attention = structs.replace(qwen3_attention(config), mask=qwen_mask(config, index))
    return LayerFacts(attention=attention, mlp=dense_mlp(config))


def qwen3_attention(config: Config) -> GroupedAttention:
    bias = flag(config, "attention_bias")
    attention = grouped(config, qkv_bias=bias, output_bias=bias, head_dim=_QWEN3_HEAD_DIM)
    return structs.replace(attention, qk_norm=QkNorm.HEADS)


def qwen_mask(config: Config, index: int) -> MaskRule:
    if not flag(config, "use_sliding_window"):
        return CAUSAL
    window = positive(config, "sliding_window", default=DEFAULT_WINDOW)
    first = count(config, "max_window_layers", default=28)
    is_windowed = slides(config, index, default=index >= first)
    return sliding_window(window) if is_windowed else CAUSAL


def gemma2(config: Config, index: int) -> LayerFacts:
    return _gemma(config, _gemma_attention(config, index, pattern=2))


def gemma3(config: Config, index: int) -> LayerFacts:
    if config.get("use_bidirectional_attention"):
        raise ModelFactsError(
            "config.json: use_bidirectional_attention is set: attention to tokens behind a query "
            "is not supported; supported: a Gemma 3 that generates, which has none of it",
            field="use_bidirectional_attention",
        )
    pattern = positive(config, "sliding_window_pattern", default=_GEMMA3_PATTERN)
    attention = _gemma_attention(config, index, pattern=pattern)
    rope = Rope("all tokens" if attention.mask == CAUSAL else "a window")
    return _gemma(config, structs.replace(attention, qk_norm=QkNorm.HEADS, rope=rope))


def _gemma(config: Config, attention: GroupedAttention) -> LayerFacts:
    """Read a layer of Gemma, of which four norms surround attention and MLP."""
    return LayerFacts(attention=attention, mlp=dense_mlp(config), norms=4)


def _gemma_attention(config: Config, index: int, *, pattern: int) -> GroupedAttention:
    """Read the attention of a layer of Gemma: every `pattern`-th one is full attention."""
    window = positive(config, "sliding_window", default=DEFAULT_WINDOW)
    is_windowed = slides(config, index, default=bool((index + 1) % pattern))
    bias = flag(config, "attention_bias")
    return structs.replace(
        grouped(config, qkv_bias=bias, output_bias=bias, head_dim=_GEMMA_HEAD_DIM),
        mask=sliding_window(window) if is_windowed else CAUSAL,
    )


def seed_oss(config: Config, index: int) -> LayerFacts:
    attention = grouped(
        config,
        qkv_bias=flag(config, "attention_bias", default=True),
        output_bias=flag(config, "attention_out_bias"),
        head_dim=128,
    )
    bias = flag(config, "mlp_bias")
    return LayerFacts(attention=attention, mlp=replace(dense_mlp(config), bias=bias))


def smollm3(config: Config, index: int) -> LayerFacts:
    """Read a layer of SmolLM3, whose layers without positions may have a window."""
    layer = llama(config, index)
    if ropes(config, index):
        return layer
    attention = structs.replace(_llama_attention(config), rope=NO_ROPE)
    window = optional(config, "sliding_window")
    if flag(config, "use_sliding_window") and window and slides(config, index, default=True):
        attention = structs.replace(attention, mask=sliding_window(window))
    return replace(layer, attention=attention)


def ernie4_5(config: Config, index: int) -> LayerFacts:
    bias = flag(config, "use_bias")
    attention = grouped(config, qkv_bias=bias, output_bias=bias, head_dim=128)
    return LayerFacts(attention=attention, mlp=replace(dense_mlp(config), bias=bias))


def exaone4(config: Config, index: int) -> LayerFacts:
    """Read a layer of EXAONE 4: if some layers have windows, the others have no positions."""
    attention = structs.replace(grouped(config), qk_norm=QkNorm.HEADS)
    window = optional(config, "sliding_window") if "sliding_window" in config else DEFAULT_WINDOW
    if window is not None:
        if slides(config, index, default=_exaone_slides(config, index)):
            attention = structs.replace(attention, mask=sliding_window(window))
        else:
            attention = structs.replace(attention, rope=NO_ROPE)
    return LayerFacts(attention=attention, mlp=dense_mlp(config))


def _exaone_slides(config: Config, index: int) -> bool:
    """Read the pattern: of letters, L for a layer that slides, or every how many-th does not."""
    pattern = config.get("sliding_window_pattern")
    if isinstance(pattern, str) and pattern:
        return pattern[index % len(pattern)] == "L"
    return bool((index + 1) % positive(config, "sliding_window_pattern", default=4))


def olmo3(config: Config, index: int) -> LayerFacts:
    """Read a layer of OLMo 3, of whose ropes only that of the layers that do not slide scales."""
    bias = flag(config, "attention_bias")
    attention = structs.replace(
        grouped(config, qkv_bias=bias, output_bias=bias), qk_norm=QkNorm.WHOLE
    )
    if slides(config, index, default=bool((index + 1) % 4)):
        window = positive(config, "sliding_window", default=DEFAULT_WINDOW)
        attention = structs.replace(attention, mask=sliding_window(window), rope=Rope("a window"))
    else:
        attention = structs.replace(attention, rope=Rope("all tokens"))
    return LayerFacts(attention=attention, mlp=dense_mlp(config))


def phi3(config: Config, index: int) -> LayerFacts:
    """Read a layer of Phi-3 or Phi-4, whose checkpoints fuse matrices of the same inputs."""
    window = optional(config, "sliding_window")
    if window is not None and window >= positive(config, "max_position_embeddings"):
        window = None  # which is wider than any context
    attention = structs.replace(
        grouped(config), mask=sliding_window(window), matrices=Matrices(fused=True)
    )
    return LayerFacts(attention=attention, mlp=replace(dense_mlp(config), fused=True))


def hunyuan(config: Config, index: int) -> LayerFacts:
    """Read a layer of Hunyuan, whose heads are normed once they are rotated."""
    bias = flag(config, "attention_bias")
    attention = grouped(config, qkv_bias=bias, output_bias=bias)
    attention = structs.replace(attention, qk_norm=QkNorm.ROTATED_HEADS)
    return LayerFacts(attention=attention, mlp=dense_mlp(config))
