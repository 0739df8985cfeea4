"""Public shapes of models that read images, with random weights, and prompts with random pictures.

A picture here is its pixels as the processor of its family would have made them, so that no
decoding takes part.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from atom.images.item import PlacedImage, image_item
from atom.sizing.vision.facts import Grid, VisionFacts

_QWEN_TEXT = {
    "model_type": "qwen3_vl_text",
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151_936,
    "max_position_embeddings": 262_144,
    "rms_norm_eps": 1e-6,
    "rope_theta": 5_000_000.0,
    "rope_scaling": {
        "rope_type": "default",
        "mrope_interleaved": True,
        "mrope_section": [24, 20, 20],
    },
}
_QWEN_TOWER = {
    "model_type": "qwen3_vl",
    "depth": 24,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_heads": 16,
    "deepstack_visual_indexes": [5, 11, 17],
}
SEEING: dict[str, dict[str, Any]] = {
    "qwen3-vl-2b": {
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "model_type": "qwen3_vl",
        "dtype": "bfloat16",
        "tie_word_embeddings": True,
        "text_config": {
            **_QWEN_TEXT,
            "hidden_size": 2048,
            "intermediate_size": 6144,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
        },
        "vision_config": {**_QWEN_TOWER, "out_hidden_size": 2048},
    },
    "qwen3-vl-8b": {
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "model_type": "qwen3_vl",
        "dtype": "bfloat16",
        "tie_word_embeddings": False,
        "text_config": {
            **_QWEN_TEXT,
            "hidden_size": 4096,
            "intermediate_size": 12_288,
            "num_hidden_layers": 36,
            "num_attention_heads": 32,
        },
        "vision_config": {
            **_QWEN_TOWER,
            "depth": 27,
            "hidden_size": 1152,
            "intermediate_size": 4304,
            "deepstack_visual_indexes": [8, 16, 24],
            "out_hidden_size": 4096,
        },
    },
    "mistral-small-3.2": {
        "architectures": ["Mistral3ForConditionalGeneration"],
        "model_type": "mistral3",
        "dtype": "bfloat16",
        "image_token_index": 10,
        "spatial_merge_size": 2,
        "vision_feature_layer": -1,
        "text_config": {
            "model_type": "mistral",
            "hidden_size": 5120,
            "intermediate_size": 32_768,
            "num_hidden_layers": 40,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "vocab_size": 131_072,
            "max_position_embeddings": 131_072,
            "rms_norm_eps": 1e-5,
            "rope_theta": 1_000_000_000.0,
        },
        "vision_config": {
            "model_type": "pixtral",
            "hidden_size": 1024,
            "intermediate_size": 4096,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "patch_size": 14,
            "image_size": 1540,
            "hidden_act": "silu",
            "rope_theta": 10_000.0,
        },
    },
    "tiny": {
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "model_type": "qwen3_vl",
        "dtype": "float32",
        "tie_word_embeddings": True,
        "image_token_id": 500,
        "text_config": {
            **_QWEN_TEXT,
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "vocab_size": 512,
            "max_position_embeddings": 2048,
            "rope_scaling": {
                "rope_type": "default",
                "mrope_interleaved": True,
                "mrope_section": [4, 2, 2],
            },
        },
        "vision_config": {
            **_QWEN_TOWER,
            "depth": 2,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_heads": 2,
            "deepstack_visual_indexes": [0],
            "num_position_embeddings": 64,
            "out_hidden_size": 64,
        },
    },
}


@dataclass(frozen=True, slots=True)
class SeeingPrompt:
    """A prompt with images, as OfflineEngine.add takes it."""

    token_ids: list[int]
    images: tuple[PlacedImage, ...]


def write_seeing(name: str, folder: Path, layers: int | None = None) -> Path:
    """Write the config.json of a shape. layers: of its decoder, None for all."""
    shape = copy.deepcopy(SEEING[name])
    if layers is not None:
        shape["text_config"]["num_hidden_layers"] = layers
    (folder / "config.json").write_text(json.dumps(shape, indent=2))
    return folder


def square_grid(facts: VisionFacts, side: int) -> Grid:
    """Return the grid of a square picture of `side` pixels, in whole merged squares."""
    merged = -(-side // (facts.patches.size * facts.patches.merge)) * facts.patches.merge
    return 1, merged, merged


def seeing_prompt(
    facts: VisionFacts, grid: Grid, around: tuple[Sequence[int], Sequence[int]], seed: int
) -> SeeingPrompt:
    """Place a random picture between two texts."""
    before, after = around
    shape, tokens = facts.pixel_shape(grid), facts.image_tokens(grid)
    pixels = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
    item = image_item(pixels, grid, tokens)
    placed = PlacedImage(item, len(before), np.ones(tokens, dtype=np.bool_))
    return SeeingPrompt([*before, *([facts.image_token_id] * tokens), *after], (placed,))


def encoder_flops(facts: VisionFacts, grid: Grid) -> float:
    """Return the operations of the products of one picture in an encoder's layers: two for each
    element of its matrices and patch, and of its patches' scores and results. The patches' own
    matrix and the projection come with the parameters."""
    patches = facts.encoded_patches(grid)
    products = 2.0 * patches * _layer_elements(facts) * facts.num_layers
    scores = 4.0 * patches**2 * facts.hidden_size * facts.num_layers
    return products + scores


def _layer_elements(facts: VisionFacts) -> int:
    gated = 3 if facts.family == "pixtral" else 2
    return 4 * facts.hidden_size**2 + gated * facts.hidden_size * facts.intermediate_size
