"""Writes and reads the checkpoint folder in the Hugging Face layout of a Mistral Small 3.1.

Knows the format only. The folder's README.md is written by people and left alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from tools.demo_eyes.model import CONTEXT_TOKENS, EPS, HEAD_DIM, THETA, Eyes, EyesShape
from tools.demo_eyes.samples import DEVIATION, MEAN
from tools.demo_eyes.vocabulary import (
    CHAT_TEMPLATE,
    IMAGE,
    IMAGE_BREAK,
    IMAGE_END,
    SPECIAL_TOKENS,
)
from tools.demo_model.checkpoint import TOKENIZER, WEIGHTS, write_json, write_weights
from tools.demo_model.vocabulary import END_OF_TEXT, TURN_END

_ROPE = {"rope_type": "default", "rope_theta": THETA}


def write_checkpoint(folder: Path, model: Eyes, tokenizer: Tokenizer) -> None:
    """Write all files; the weights are rounded to bfloat16."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in _settings(model.shape, tokenizer).items():
        write_json(folder / name, value)
    tokenizer.save(str(folder / TOKENIZER), pretty=False)
    write_weights(folder, model)


def read_checkpoint(folder: Path, dtype: torch.dtype) -> tuple[Eyes, Tokenizer]:
    """Return the model in evaluation mode, and its tokenizer."""
    missing = [name for name in (WEIGHTS, TOKENIZER) if not (folder / name).is_file()]
    if missing:
        raise FileNotFoundError(
            f"{folder} is no checkpoint: {', '.join(missing)} not found; "
            "make one with `python -m tools.demo_eyes.train --out DIR`"
        )
    tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
    model = Eyes(shape_of(tokenizer))
    model.load_state_dict(load_file(folder / WEIGHTS))
    return model.to(dtype).eval(), tokenizer


def shape_of(tokenizer: Tokenizer) -> EyesShape:
    """Return the model's shape, whose vocabulary is the tokenizer's."""
    image = tokenizer.token_to_id(IMAGE)
    assert image is not None
    return EyesShape(tokenizer.get_vocab_size(), image)


def _settings(shape: EyesShape, tokenizer: Tokenizer) -> dict[str, dict[str, Any]]:
    ends = [tokenizer.token_to_id(TURN_END), tokenizer.token_to_id(END_OF_TEXT)]
    return {
        "config.json": {
            "architectures": ["Mistral3ForConditionalGeneration"],
            "model_type": "mistral3",
            "dtype": "bfloat16",
            "torch_dtype": "bfloat16",  # the key of readers older than transformers 5
            "image_token_index": shape.image_token,
            "spatial_merge_size": shape.merge,
            "multimodal_projector_bias": False,
            "projector_hidden_act": "gelu",
            "vision_feature_layer": -1,
            "tie_word_embeddings": False,
            "eos_token_id": ends,
            "text_config": _text_config(shape, ends),
            "vision_config": _vision_config(shape),
        },
        "generation_config.json": {
            "do_sample": False,
            "eos_token_id": ends,
            "pad_token_id": tokenizer.token_to_id(END_OF_TEXT),
        },
        "preprocessor_config.json": {
            "image_processor_type": "PixtralImageProcessor",
            "do_convert_rgb": True,
            "do_normalize": True,
            "do_rescale": True,
            "do_resize": True,
            "image_mean": [MEAN] * 3,
            "image_std": [DEVIATION] * 3,
            "patch_size": {"height": shape.patch, "width": shape.patch},
            "resample": 3,
            "rescale_factor": 1 / 255,
            "size": {"longest_edge": shape.longest},
        },
        "processor_config.json": {
            "processor_class": "PixtralProcessor",
            "patch_size": shape.patch,
            "spatial_merge_size": shape.merge,
            "image_token": IMAGE,
            "image_break_token": IMAGE_BREAK,
            "image_end_token": IMAGE_END,
        },
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": None,
            "eos_token": TURN_END,
            "pad_token": END_OF_TEXT,
            "unk_token": None,
            "additional_special_tokens": list(SPECIAL_TOKENS[1:]),
            "clean_up_tokenization_spaces": False,
            "model_max_length": CONTEXT_TOKENS,
            "chat_template": CHAT_TEMPLATE,
        },
    }


def _text_config(shape: EyesShape, ends: list[int | None]) -> dict[str, Any]:
    return {
        "model_type": "mistral",
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "max_position_embeddings": CONTEXT_TOKENS,
        "rms_norm_eps": EPS,
        "rope_theta": THETA,
        "rope_parameters": _ROPE,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "eos_token_id": ends,
    }


def _vision_config(shape: EyesShape) -> dict[str, Any]:
    return {
        "model_type": "pixtral",
        "hidden_size": shape.vision_hidden_size,
        "intermediate_size": shape.vision_intermediate_size,
        "num_hidden_layers": shape.vision_layers,
        "num_attention_heads": shape.vision_heads,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "image_size": shape.longest,
        "patch_size": shape.patch,
        "num_channels": 3,
        "rope_theta": THETA,
        "rope_parameters": _ROPE,
    }
