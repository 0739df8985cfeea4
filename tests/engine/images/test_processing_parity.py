"""Pixels and tokens of images equal those of transformers' processors.

Oracle: the processors that need Pillow alone. The pictures are seeded; the long run has 500 for
each family.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atom.images.errors import ImageError
from atom.images.processing.families import image_processor
from atom.images.processing.processor import Expansion
from tests.support import image_oracles
from tests.support.image_oracles import Oracle, written
from tests.support.pictures import drawn_picture

_FEW, _MANY = 12, 500
# PixtralProcessor takes one function from the processor that needs torchvision. Its twin has it.
_TORCHVISIONS = "transformers.models.pixtral.image_processing_pixtral"


@dataclass(frozen=True)
class _Case:
    """A checkpoint's fields, and the oracle of its pictures: the pixels, and the text of the
    tokens. image: fields of preprocessor_config.json; whole: of processor_config.json; apart: how
    far values may be apart."""

    config: Mapping[str, Any]
    oracle: Oracle
    image: Mapping[str, Any] = field(default_factory=dict)
    whole: Mapping[str, Any] = field(default_factory=dict)
    apart: float = 1 / 255


# torch and Pillow may round a resized byte to neighbours, two steps of bfloat16 apart, over
# a deviation of 0.5.
_ONE_BYTE_HALVED = 2**-6
_QWEN3_IMAGE = {
    "size": {"longest_edge": 600_000, "shortest_edge": 65_536},
    "patch_size": 16,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}
CASES = {
    "mistral3": _Case(
        {"model_type": "mistral3", "spatial_merge_size": 2, "vision_config": {"patch_size": 14}},
        image_oracles.pixtral,
        {"size": {"longest_edge": 540}, "patch_size": {"height": 14, "width": 14}},
        {"patch_size": 14, "spatial_merge_size": 2},
    ),
    "mistral3_defaults": _Case(
        {"model_type": "mistral3", "spatial_merge_size": 1, "vision_config": {"patch_size": 16}},
        image_oracles.pixtral,
        {"do_center_crop": None},
    ),
    "qwen3_vl": _Case(
        {"model_type": "qwen3_vl", "vision_config": {}}, image_oracles.qwen, _QWEN3_IMAGE
    ),
    "qwen2_style": _Case(
        {"model_type": "qwen3_5", "vision_config": {"patch_size": 14}},
        image_oracles.qwen,
        {"min_pixels": 3136, "max_pixels": 401_408},
    ),
    "gemma3": _Case(
        {
            "model_type": "gemma3",
            "mm_tokens_per_image": 256,
            "vision_config": {"image_size": 448, "patch_size": 14},
        },
        image_oracles.gemma3,
        {"size": {"height": 448, "width": 448}, "do_pan_and_scan": None, "image_seq_length": 256},
    ),
    "gemma4": _Case(
        {"model_type": "gemma4", "vision_config": {}},
        image_oracles.gemma4,
        {"max_soft_tokens": 140},
    ),
    "gemma4_defaults": _Case({"model_type": "gemma4", "vision_config": {}}, image_oracles.gemma4),
    "kimi_k25": _Case(
        {"model_type": "kimi_k25", "vision_config": {"merge_kernel_size": [2, 2]}},
        image_oracles.kimi,
        {
            "size": {"max_height": 40, "max_width": 40},
            "max_patches": 1200,
            "patch_size": 14,
            "merge_size": 2,
        },
    ),
    "kimi_k25_published": _Case(
        {"model_type": "kimi_k25", "vision_config": {"patch_size": 14}},
        image_oracles.kimi,
        {
            "media_proc_cfg": {
                "in_patch_limit": 16384,
                "patch_size": 14,
                "image_mean": [0.5, 0.5, 0.5],
                "image_std": [0.5, 0.5, 0.5],
                "merge_kernel_size": 2,
                "fixed_output_tokens": None,
                "patch_limit_on_one_side": 512,
                "in_patch_limit_each_frame": 4096,
            }
        },
    ),
    "llama4": _Case(
        {"model_type": "llama4", "vision_config": {"image_size": 112}},
        image_oracles.llama4,
        {"size": {"height": 112, "width": 112}, "max_patches": 16},
        {"patch_size": 14},
        apart=_ONE_BYTE_HALVED,
    ),
    "llama4_max_canvas": _Case(
        {"model_type": "llama4", "vision_config": {"image_size": 84}},
        image_oracles.llama4,
        {"size": {"height": 84, "width": 84}, "max_patches": 5, "resize_to_max_canvas": True},
        apart=_ONE_BYTE_HALVED,
    ),
    "gemma3_pan_and_scan": _Case(
        {"model_type": "gemma3", "mm_tokens_per_image": 64, "vision_config": {}},
        image_oracles.gemma3,
        {
            "do_pan_and_scan": True,
            "pan_and_scan_min_crop_size": 100,
            "pan_and_scan_max_num_crops": 4,
            "pan_and_scan_min_ratio_to_activate": 1.2,
        },
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_pixels_and_tokens_equal_the_oracles(name: str, tmp_path: Path) -> None:
    _compare(CASES[name], tmp_path, range(_FEW))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_pixels_and_tokens_of_many_pictures_equal_the_oracles(name: str, tmp_path: Path) -> None:
    _compare(CASES[name], tmp_path, range(_FEW, _FEW + _MANY))


def _compare(case: _Case, folder: Path, seeds: range) -> None:
    """Compare pictures of every size that the oracle takes."""
    (folder / "preprocessor_config.json").write_text(json.dumps(case.image))
    (folder / "processor_config.json").write_text(json.dumps(case.whole))
    ours = image_processor(folder, case.config)
    assert ours is not None
    for seed in seeds:
        picture = drawn_picture(random.Random(seed))
        try:
            pixels, text = case.oracle(picture, case.image, case.config)
        except ValueError:  # a picture so long that the oracle fails: ours says so, or has a row
            with suppress(ImageError):
                assert ours.process(picture).tokens > 0
            continue
        item = ours.process(picture)
        assert item.pixels.shape == pixels.shape, (seed, picture.size)
        assert np.abs(item.pixels - pixels).max() <= case.apart, (seed, picture.size)
        expansion = ours.expansion_of(item.grid)
        assert written(expansion) == text, (seed, picture.size)
        assert item.grid == ours.plan(picture.height, picture.width)
        assert item.tokens == ours.tokens_of(item.grid) == _filled(expansion)


def _filled(expansion: Expansion) -> int:
    groups = [piece for piece in expansion if not isinstance(piece, str)]
    return sum(run.count for group in groups for run in group if run.is_image)
