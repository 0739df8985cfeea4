"""The text part of a multimodal config.json, as the config.json of a text model. Pure.

Such a checkpoint wraps a decoder, whose fields are in `text_config`, and encoders of images or
sounds, which are ignored: only the decoder is sized and run. This module also selects and renames
the decoder's tensors, since their names depend on the wrapper, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from atom.sizing.architectures import of_model_type
from atom.sizing.config_fields import Config, mapping
from atom.sizing.config_schema import checked
from atom.sizing.errors import ModelFactsError
from atom.sizing.layers import ExpertsBlock, Stacking

# Fields of the whole checkpoint override the text part's, which may only repeat a default.
_OF_THE_WHOLE = (
    "dtype",
    "torch_dtype",
    "quantization_config",
    "eos_token_id",
    "bos_token_id",
    "tie_word_embeddings",
)
# Defaults of Gemma 3's class: transformers 4 wrote only the differences of a nested config.
_GEMMA3 = {
    "vocab_size": 262_208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131_072,
}
_GEMMA4 = {
    "vocab_size": 262_144,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 30,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131_072,
    "hidden_activation": "gelu_pytorch_tanh",
}
_MISTRAL = {
    "vocab_size": 32_000,
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131_072,
}
_QWEN3_VL = {
    "vocab_size": 151_936,
    "hidden_size": 4096,
    "intermediate_size": 22_016,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "head_dim": 128,
    "max_position_embeddings": 128_000,
    "rope_theta": 500_000.0,
}
_QWEN3_VL_MOE = {
    "vocab_size": 151_936,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "max_position_embeddings": 128_000,
    "moe_intermediate_size": 1408,
    "num_experts_per_tok": 4,
    "num_local_experts": 60,
    "tie_word_embeddings": True,
    "rope_theta": 500_000.0,
}
_QWEN3_5 = {
    "vocab_size": 248_320,
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "max_position_embeddings": 32_768,
}
_QWEN3_5_MOE = {
    **_QWEN3_5,
    "hidden_size": 2048,
    "num_hidden_layers": 40,
    "num_key_value_heads": 2,
}
_LLAMA4 = {
    "vocab_size": 202_048,
    "hidden_size": 5120,
    "intermediate_size": 8192,
    "intermediate_size_mlp": 16_384,
    "num_hidden_layers": 48,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 131_072,
}
_MINIMAX_M3 = {
    "vocab_size": 200_064,
    "hidden_size": 6144,
    "num_hidden_layers": 60,
    "num_attention_heads": 64,
    "num_key_value_heads": 4,
    "max_position_embeddings": 524_288,
}
_DEEPSEEK_V3 = {
    "vocab_size": 129_280,
    "hidden_size": 7168,
    "intermediate_size": 18_432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "q_lora_rank": 1536,
    "max_position_embeddings": 4096,
}


@dataclass(frozen=True, slots=True)
class Wrapper:
    """A multimodal class whose text part is served. label: its common name; model_type: by which a
    config.json without `architectures` is known; text: the architecture by the text part's
    model_type, the first one if there is no model_type; defaults: of the text part's fields, as in
    transformers' class; fixed: fields that the class fixes, whatever its config states;
    experts_block: if names of experts differ from the text part's architecture."""

    label: str
    model_type: str
    text: Mapping[str, str]
    defaults: Mapping[str, object] = field(default_factory=dict)
    fixed: Mapping[str, object] = field(default_factory=dict)
    experts_block: ExpertsBlock | None = None


WRAPPERS: dict[str, Wrapper] = {
    "Gemma3ForConditionalGeneration": Wrapper(
        "Gemma 3", "gemma3", {"gemma3_text": "Gemma3ForCausalLM"}, _GEMMA3
    ),
    "Gemma4ForConditionalGeneration": Wrapper(
        "Gemma 4", "gemma4", {"gemma4_text": "Gemma4ForCausalLM"}, _GEMMA4
    ),
    "KimiK25ForConditionalGeneration": Wrapper(
        "Kimi-K2.5",
        "kimi_k25",
        dict.fromkeys(("deepseek_v3", "kimi_k2"), "DeepseekV3ForCausalLM"),
        _DEEPSEEK_V3,
    ),
    "MiniMaxM3SparseForConditionalGeneration": Wrapper(
        "MiniMax-M3",
        "minimax_m3_vl",
        dict.fromkeys(("minimax_m3_vl_text", "minimax_m3"), "MiniMaxM3VLForCausalLM"),
        _MINIMAX_M3,
    ),
    "Mistral3ForConditionalGeneration": Wrapper(
        "Mistral Small 3", "mistral3", {"mistral": "MistralForCausalLM"}, _MISTRAL
    ),
    "Qwen3VLForConditionalGeneration": Wrapper(
        "Qwen3-VL (dense)", "qwen3_vl", {"qwen3_vl_text": "Qwen3ForCausalLM"}, _QWEN3_VL
    ),
    "Qwen3VLMoeForConditionalGeneration": Wrapper(
        "Qwen3-VL (experts)",
        "qwen3_vl_moe",
        {"qwen3_vl_moe_text": "Qwen3MoeForCausalLM"},
        _QWEN3_VL_MOE,
        {"norm_topk_prob": True},
        ExpertsBlock(stacking=Stacking.SIDE_BY_SIDE),
    ),
    "Qwen3_5ForConditionalGeneration": Wrapper(
        "Qwen3.5", "qwen3_5", {"qwen3_5_text": "Qwen3_5ForCausalLM"}, _QWEN3_5
    ),
    "Qwen3_5MoeForConditionalGeneration": Wrapper(
        "Qwen3.5 (experts)",
        "qwen3_5_moe",
        {"qwen3_5_moe_text": "Qwen3_5MoeForCausalLM"},
        _QWEN3_5_MOE,
    ),
    "Llama4ForConditionalGeneration": Wrapper(
        "Llama 4", "llama4", {"llama4_text": "Llama4ForCausalLM"}, _LLAMA4
    ),
}
# Names of architectures that published checkpoints or transformers name otherwise.
_ALSO_NAMED = {
    "Kimi_K25ForConditionalGeneration": "KimiK25ForConditionalGeneration",
    "MiniMaxM3SparseForCausalLM": "MiniMaxM3VLForCausalLM",
}
# How names of the decoder's tensors begin in a wrapper, and in the text model.
_DECODER_NAMES = ("language_model.model.", "model.language_model.")
_TEXT_NAMES = {
    "language_model.lm_head.": "lm_head.",
    **dict.fromkeys(_DECODER_NAMES, "model."),
}
# Tensors that a text model does not use.
_OTHER_PARTS = (
    "vision_tower.",
    "vision_model.",
    "visual.",
    "multi_modal_projector.",
    "mm_projector.",
    "patch_merge_mlp.",
    "embed_vision.",
    "audio_tower.",
    "embed_audio.",
)


def architectures_of(config: Config) -> object:
    """Return the value of `architectures`, under the names of published checkpoints; if it is null,
    empty or absent, the architecture of `model_type`."""
    named = config.get("architectures")
    if isinstance(named, (list, tuple)):
        named = [_ALSO_NAMED.get(str(each), each) for each in named]
    kind = config.get("model_type")
    if named or not isinstance(kind, str):
        return named
    wrapper = next((name for name, each in WRAPPERS.items() if each.model_type == kind), None)
    found = wrapper or of_model_type(kind)
    return named if found is None else [found]


def wrapper_of(config: Config) -> str | None:
    """Return the architecture of a multimodal config.json whose text part is known; None for
    others."""
    names = architectures_of(config)
    if isinstance(names, (list, tuple)) and len(names) == 1 and str(names[0]) in WRAPPERS:
        return str(names[0])
    return None


def text_part(config: Config) -> dict[str, object]:
    """Return the config.json of the decoder, with every value checked (config_schema.py). Raises
    ModelFactsError for a decoder that the wrapper does not support, and for a nonsensical value."""
    config = checked(config)
    name = wrapper_of(config)
    if name is None:
        return {**config, "architectures": architectures_of(config)}
    wrapper, text = WRAPPERS[name], mapping(config, "text_config")
    kind = str(text.get("model_type") or next(iter(wrapper.text)))
    if kind not in wrapper.text:
        raise ModelFactsError(
            f"config.json: the text part of {name} is a {kind!r}, which is not supported; "
            f"supported: {', '.join(wrapper.text)}",
            field="text_config",
        )
    text = checked(text)
    whole = {key: config[key] for key in _OF_THE_WHOLE if config.get(key) is not None}
    named = {"architectures": [wrapper.text[kind]]}
    return {**wrapper.defaults, **text, **whole, **wrapper.fixed, **named}


def text_name(name: str) -> str | None:
    """Return the text model's name of a tensor in a wrapper's checkpoint; None for a tensor of
    another part."""
    for begin, instead in _TEXT_NAMES.items():
        if name.startswith(begin):
            return instead + name.removeprefix(begin)
    return None if name.removeprefix("model.").startswith(_OTHER_PARTS) else name


def encoder_name(name: str) -> str | None:
    """Return the engine's name of a tensor of an encoder or its projection in a wrapper's
    checkpoint; None for other tensors."""
    inner = name.removeprefix("model.")
    return inner if inner.startswith(_OTHER_PARTS) else None


def layer_names(index: int, wrapper: str | None) -> tuple[str, ...]:
    """Return all names of the decoder's layer `index`: in a wrapper, lists of unquantised modules
    may have any of them."""
    begins = ("model.",) if wrapper is None else ("model.", *_DECODER_NAMES)
    return tuple(f"{begin}layers.{index}" for begin in begins)
