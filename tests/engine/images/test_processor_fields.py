"""A field of an image processor that is moved, left out or null is read as transformers reads it,
or refused by name. A drawn part of all cases runs each day, all of them in the long run."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.support import image_oracles
from tests.support.processor_sweep import FieldChange, Published, changes_of, verdict

SOUND = ("equal", "refused", "by transformers")
_HALF = [0.5, 0.5, 0.5]
_BYTES = {
    "do_convert_rgb": None, "do_normalize": True, "do_rescale": True, "do_resize": True,
    "image_mean": _HALF, "image_std": _HALF, "rescale_factor": 0.00392156862745098,
}  # fmt: skip
# Fields of every class in transformers that published files leave out.
_MORE = {
    "do_center_crop": False, "crop_size": {"height": 112, "width": 112}, "do_pad": True,
    "pad_size": {"height": 640, "width": 640}, "default_to_square": True, "do_grayscale": False,
    "data_format": "channels_first", "input_data_format": None, "size_divisor": 8,
}  # fmt: skip
_CLIP = {
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
_QWEN = {
    "size": {"longest_edge": 16_777_216, "shortest_edge": 65_536}, "patch_size": 16,
    "temporal_patch_size": 2, "merge_size": 2, "image_mean": _HALF, "image_std": _HALF,
    "processor_class": "Qwen3VLProcessor", "image_processor_type": "Qwen2VLImageProcessorFast",
}  # fmt: skip
PUBLISHED = {
    "gemma3": Published(
        {
            "model_type": "gemma3", "mm_tokens_per_image": 256,
            "vision_config": {"image_size": 896, "patch_size": 14},
        },
        image_oracles.gemma3,
        {
            **_BYTES, "do_pan_and_scan": None, "image_seq_length": 256,
            "pan_and_scan_max_num_crops": None, "pan_and_scan_min_crop_size": None,
            "pan_and_scan_min_ratio_to_activate": None, "resample": 2,
            "image_processor_type": "Gemma3ImageProcessor", "processor_class": "Gemma3Processor",
            "size": {"height": 896, "width": 896},
        },
        {"image_seq_length": 256, "processor_class": "Gemma3Processor"},
        more=_MORE,
    ),
    "gemma4": Published(
        {"model_type": "gemma4", "vision_config": {"patch_size": 16, "pooling_kernel_size": 3}},
        image_oracles.gemma4,
        {
            **_BYTES, "do_normalize": False, "image_mean": [0.0] * 3, "image_std": [1.0] * 3,
            "max_soft_tokens": 280, "patch_size": 16, "pooling_kernel_size": 3, "resample": 3,
            "image_seq_length": 280, "image_processor_type": "Gemma4ImageProcessor",
            "processor_class": "Gemma4Processor",
        },
        more=_MORE,
    ),
    "qwen3_vl": Published(
        {"model_type": "qwen3_vl", "vision_config": {"patch_size": 16}},
        image_oracles.qwen, _QWEN,
        more={**_BYTES, **_MORE, "min_pixels": 65_536, "max_pixels": 600_000, "resample": 3},
    ),
    "qwen3_5": Published(
        {"model_type": "qwen3_5", "vision_config": {"patch_size": 16, "spatial_merge_size": 2}},
        image_oracles.qwen, {**_QWEN, "do_resize": True, "resample": 3},
        more={**_BYTES, **_MORE},
    ),
    "mistral3": Published(
        {"model_type": "mistral3", "spatial_merge_size": 2, "vision_config": {"patch_size": 14}},
        image_oracles.pixtral,
        {
            **_BYTES, **_CLIP, "image_processor_type": "PixtralImageProcessorFast",
            "patch_size": 14, "processor_class": "PixtralProcessor", "resample": 3,
            "size": {"longest_edge": 1540}, "do_center_crop": None, "crop_size": None,
            "default_to_square": True, "data_format": "channels_first", "input_data_format": None,
        },
        {
            "image_break_token": "[IMG_BREAK]", "image_end_token": "[IMG_END]",
            "image_token": "[IMG]", "patch_size": 14, "processor_class": "PixtralProcessor",
            "spatial_merge_size": 2,
        },
        more=_MORE,
    ),
    "llama4": Published(
        {"model_type": "llama4", "vision_config": {"image_size": 336, "patch_size": 14}},
        image_oracles.llama4,
        {
            **_BYTES, "do_center_crop": None, "crop_size": None, "do_pad": False,
            "default_to_square": True, "data_format": "channels_first", "max_patches": 16,
            "image_processor_type": "Llama4ImageProcessorFast", "resample": 2,
            "processor_class": "Llama4Processor", "resize_to_max_canvas": False,
            "size": {"height": 336, "width": 336}, "size_divisor": None,
        },
        {"patch_size": 14, "fake_image_token": "<|image|>"},
        more=_MORE,
        apart=2**-6,
    ),
    "kimi_k25": Published(
        {"model_type": "kimi_k25", "vision_config": {"merge_kernel_size": [2, 2]}},
        image_oracles.kimi,
        {
            **_BYTES, "size": {"max_height": 512, "max_width": 512}, "max_patches": 16_384,
            "patch_size": 14, "merge_size": 2, "resample": 3,
        },
        more=_MORE,
    ),
    "kimi_k25_published": Published(
        {"model_type": "kimi_k25", "vision_config": {"patch_size": 14}},
        image_oracles.kimi,
        {
            "auto_map": {"AutoProcessor": "kimi_k25_processor.KimiK25Processor"},
            "media_proc_cfg": {
                "in_patch_limit": 16384, "patch_size": 14, "image_mean": _HALF,
                "image_std": _HALF, "merge_kernel_size": 2, "fixed_output_tokens": None,
                "patch_limit_on_one_side": 512, "in_patch_limit_each_frame": 4096,
                "in_patch_limit_video": None, "sample_fps": 2.0, "max_num_frames_each_video": None,
                "temporal_merge_kernel_size": 4, "timestamp_mode": "hh:mm:ss.fff",
                "config_type": "media_proc.processors.moonvit.MoonViTMediaProcessorConfig",
            },
        },
    ),
}  # fmt: skip
CASES = [
    pytest.param(family, change, id=f"{family}-{change}")
    for family, published in PUBLISHED.items()
    for change in changes_of(published)
]


@pytest.mark.parametrize("family", PUBLISHED)
def test_the_published_fields_are_read(family: str, tmp_path: Path) -> None:
    nothing = FieldChange(("processor_class",), ...)
    assert verdict(tmp_path, PUBLISHED[family], nothing) == "equal"


@pytest.mark.sampled(120)
@pytest.mark.parametrize(("family", "change"), CASES)
def test_a_changed_field_is_read_as_transformers_does_or_refused(
    family: str, change: FieldChange, tmp_path: Path
) -> None:
    assert verdict(tmp_path, PUBLISHED[family], change) in SOUND


def test_fields_are_found_in_either_file(tmp_path: Path) -> None:
    """Newer checkpoints have the image processor's fields in processor_config.json."""
    drawn = random.Random(3)
    for family, published in PUBLISHED.items():
        nested: dict[str, Any] = {**published.whole, "image_processor": dict(published.image)}
        moved = Published(
            published.config, published.oracle, published.image, nested, apart=published.apart
        )
        change = FieldChange((drawn.choice(["processor_class", "auto_map"]),), ...)
        assert verdict(tmp_path, moved, change) == "equal", family
