"""Tiny random multimodal checkpoints, written by transformers: a decoder with an encoder of images
around it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file

from tests.support.models.byte_tokenizer import write_byte_tokenizer

_TEXT: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
}
_VISION: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 48}
_TOWER: dict[str, Any] = {
    **_VISION,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
# Of each wrapper its classes, and what its text and its encoder of images have of their own.
_MROPE = {
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 5_000.0,
        "mrope_interleaved": True,
        "mrope_section": [4, 2, 2],
    }
}
_QWEN_VISION: dict[str, Any] = {
    **_VISION,
    "depth": 1,
    "num_heads": 2,
    "out_hidden_size": 64,
    "deepstack_visual_indexes": [0],
    "num_position_embeddings": 16,
}
_DELTA_NET = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
    "num_hidden_layers": 4,
}
_GEMMA4_VISION: dict[str, Any] = {
    **_VISION,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "patch_size": 4,
    "position_embedding_size": 64,
}
_LLAMA4_VISION: dict[str, Any] = {
    **_TOWER,
    "intermediate_size": 128,
    "vision_output_dim": 32,
    "projector_input_dim": 32,
    "projector_output_dim": 32,
}
_KIMI_VISION: dict[str, Any] = {
    **_VISION,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "patch_size": 4,
    "pos_emb_height": 5,
    "pos_emb_width": 5,
}
KINDS: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "gemma3": (
        "Gemma3Config",
        "Gemma3ForConditionalGeneration",
        {"sliding_window": 20, "query_pre_attn_scalar": 20},
        _TOWER,
    ),
    "gemma4": (
        "Gemma4Config",
        "Gemma4ForConditionalGeneration",
        {
            "sliding_window": 20,
            "global_head_dim": 32,
            "hidden_size_per_layer_input": 0,
            "use_bidirectional_attention": "vision",
        },
        _GEMMA4_VISION,
    ),
    "kimi-k2.5": (
        "Kimi_K25Config",
        "Kimi_K25ForConditionalGeneration",
        {
            "q_lora_rank": 32,
            "kv_lora_rank": 32,
            "qk_nope_head_dim": 16,
            "qk_rope_head_dim": 8,
            "head_dim": 8,
            "v_head_dim": 16,
            "num_key_value_heads": 4,
            "moe_intermediate_size": 24,
            "n_routed_experts": 4,
            "n_group": 1,
            "topk_group": 1,
            "num_experts_per_tok": 2,
            "first_k_dense_replace": 1,
            "num_mtp_layers": 0,
        },
        _KIMI_VISION,
    ),
    "mistral3": (
        "Mistral3Config",
        "Mistral3ForConditionalGeneration",
        {"model_type": "mistral", "sliding_window": None, "num_key_value_heads": 4},
        {**_TOWER, "model_type": "pixtral", "head_dim": 16},
    ),
    "qwen3-vl": (
        "Qwen3VLConfig",
        "Qwen3VLForConditionalGeneration",
        _MROPE,
        _QWEN_VISION,
    ),
    "qwen3-vl-moe": (
        "Qwen3VLMoeConfig",
        "Qwen3VLMoeForConditionalGeneration",
        {
            **_MROPE,
            "num_experts": 5,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "mlp_only_layers": [0],
        },
        _QWEN_VISION,
    ),
    "qwen3.5": (
        "Qwen3_5Config",
        "Qwen3_5ForConditionalGeneration",
        _DELTA_NET,
        _QWEN_VISION,
    ),
    "qwen3.5-moe": (
        "Qwen3_5MoeConfig",
        "Qwen3_5MoeForConditionalGeneration",
        {
            **_DELTA_NET,
            "num_experts": 5,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "shared_expert_intermediate_size": 24,
        },
        _QWEN_VISION,
    ),
    "llama4": (
        "Llama4Config",
        "Llama4ForConditionalGeneration",
        {
            "num_hidden_layers": 4,
            "num_local_experts": 3,
            "intermediate_size_mlp": 80,
            "interleave_moe_layer_step": 2,
            "attention_chunk_size": 20,
            "floor_scale": 16,
        },
        _LLAMA4_VISION,
    ),
}

# Fields of config.json beside the two parts, which a tiny encoder needs.
_WHOLE: dict[str, dict[str, Any]] = {
    "gemma3": {"mm_tokens_per_image": 4},
    "kimi-k2.5": {"projection_hidden_size": 32, "tie_word_embeddings": False},
}


def make_multimodal_checkpoint(
    folder: Path,
    kind: str,
    *,
    vision: Mapping[str, Any] | None = None,
    whole: Mapping[str, Any] | None = None,
    unlikely: Sequence[int] = (),
    **changes: Any,
) -> Any:
    """Writes config, weights and tokenizer; the model itself, transformers'. changes: of its text
    part; vision: of its encoder; whole: of config.json itself; unlikely:
    tokens that are never the most likely."""
    tokenizer = write_byte_tokenizer(folder)
    config_name, model_name, text, encoder = KINDS[kind]
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(5)
        config = getattr(transformers, config_name)(
            text_config={**_TEXT, "vocab_size": tokenizer.get_vocab_size(), **text, **changes},
            vision_config={**encoder, **(vision or {})},
            **{**_WHOLE.get(kind, {}), **(whole or {})},
        )
        model = getattr(transformers, model_name)(config).eval()
        for name, weight in model.named_parameters():
            norm = 0.0 if kind.startswith(("gemma3", "qwen3.5")) else 1.0
            norm = 1.0 if "linear_attn.norm" in name or "vision_tower" in name else norm
            mean, std = (norm, 0.1) if weight.dim() == 1 else (0.0, 0.12)
            torch.nn.init.normal_(weight, 0.0 if "bias" in name else mean, std)
        if unlikely:
            model.get_output_embeddings().weight[list(unlikely)] = 0.0
    model.save_pretrained(folder)
    if kind == "qwen3-vl-moe":
        _lay_experts_inputs_first(folder)
    if kind == "kimi-k2.5":
        _name_as_published(folder)
    return model


# Names that transformers writes of Kimi-K2.5, whose other names are those of published checkpoints.
_KIMI_NAMES = {
    "language_model.model.blocks.": "language_model.model.layers.",
    "model.mm_projector.": "mm_projector.",
    "vision_tower.encoder.patch_embed.": "vision_tower.patch_embed.",
}


def _name_as_published(folder: Path) -> None:
    file = folder / "model.safetensors"
    tensors = load_file(file)
    for written, published in _KIMI_NAMES.items():
        tensors = {name.replace(written, published): each for name, each in tensors.items()}
    save_file(tensors, file)


def _lay_experts_inputs_first(folder: Path) -> None:
    """As the published checkpoints have them; transformers 5 writes them as it computes."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    stacks = [name for name in tensors if ".experts." in name]
    assert stacks
    for name in stacks:
        tensors[name] = tensors[name].transpose(1, 2).contiguous()
    save_file(tensors, file)


def edit_text_config(folder: Path, **changes: Any) -> None:
    """Change fields of the text part; those whose value is ... are taken away."""
    file = folder / "config.json"
    config = json.loads(file.read_text())
    text = {**config["text_config"], **changes}
    config["text_config"] = {key: value for key, value in text.items() if value is not ...}
    file.write_text(json.dumps(config))
