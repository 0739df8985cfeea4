"""Pixels and tokens of images equal those of transformers' processors.

Oracle: the processors that need Pillow alone. The pictures are seeded; the long run has 500 for
each family.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from atom.images.errors import ImageError
from atom.images.processing.families import image_processor
from atom.images.processing.processor import Expansion
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
    oracle: Callable[[Image.Image, Mapping[str, Any], Mapping[str, Any]], tuple[np.ndarray, str]]
    image: Mapping[str, Any] = field(default_factory=dict)
    whole: Mapping[str, Any] = field(default_factory=dict)
    apart: float = 1 / 255


def _pixtral(
    picture: Image.Image, image: Mapping[str, Any], config: Mapping[str, Any]
) -> tuple[np.ndarray, str]:
    from transformers.models.pixtral import image_processing_pil_pixtral as pil_pixtral

    side, merge = config["vision_config"]["patch_size"], config["spatial_merge_size"]
    found = pil_pixtral.PixtralImageProcessorPil(**image)(picture, patch_size=side * merge)
    names = SimpleNamespace(
        patch_size=side,
        spatial_merge_size=merge,
        image_token="[IMG]",
        image_break_token="[IMG_BREAK]",
        image_end_token="[IMG_END]",
    )
    with _standing_in({_TORCHVISIONS: pil_pixtral}):
        from transformers.models.pixtral.processing_pixtral import PixtralProcessor
    return found["pixel_values"][0], PixtralProcessor.replace_image_token(names, found, 0)


def _qwen(
    picture: Image.Image, image: Mapping[str, Any], config: Mapping[str, Any]
) -> tuple[np.ndarray, str]:
    from transformers.models.qwen2_vl import image_processing_pil_qwen2_vl as pil_qwen2_vl
    from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor

    processor = pil_qwen2_vl.Qwen2VLImageProcessorPil(**image)
    found = processor(picture)
    names = SimpleNamespace(image_processor=processor, image_token="<|image_pad|>")
    return found["pixel_values"], Qwen3VLProcessor.replace_image_token(names, found, 0)


def _gemma3(
    picture: Image.Image, image: Mapping[str, Any], config: Mapping[str, Any]
) -> tuple[np.ndarray, str]:
    from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
    from transformers.models.gemma3.processing_gemma3 import Gemma3Processor

    found = Gemma3ImageProcessorPil(**image)(picture)
    soft = "<image_soft_token>" * config["mm_tokens_per_image"]
    names = SimpleNamespace(full_image_sequence=f"\n\n<start_of_image>{soft}<end_of_image>\n\n")
    return np.stack(found["pixel_values"]), Gemma3Processor.replace_image_token(names, found, 0)


def _gemma4(
    picture: Image.Image, image: Mapping[str, Any], config: Mapping[str, Any]
) -> tuple[np.ndarray, str]:
    from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil
    from transformers.models.gemma4.processing_gemma4 import Gemma4Processor

    found = Gemma4ImageProcessorPil(**image)(picture)
    names = SimpleNamespace(boi_token="<|image>", image_token="<|image|>", eoi_token="<image|>")
    real = (found["image_position_ids"][0] >= 0).all(axis=-1)
    return found["pixel_values"][0][real], Gemma4Processor.replace_image_token(names, found, 0)


def _llama4(
    picture: Image.Image, image: Mapping[str, Any], config: Mapping[str, Any]
) -> tuple[np.ndarray, str]:
    """Run the oracle without torchvision: its resizing of bytes is torch's own, as here."""
    import torch
    from transformers.image_utils import SizeDict
    from transformers.utils import is_torchvision_available

    assert not is_torchvision_available()  # looked up before the double takes its name
    with _standing_in(_torchvision(torch)):
        from transformers.models.llama4.image_processing_llama4 import Llama4ImageProcessor
        from transformers.models.llama4.processing_llama4 import Llama4Processor

    made = SimpleNamespace(
        resize=lambda images, size, resample: _resized(torch, images, size),
        rescale_and_normalize=lambda *args: Llama4ImageProcessor.rescale_and_normalize(made, *args),
        normalize=lambda images, mean, std: images.sub(mean[0]).div_(std[0]),
    )
    side = image["size"]["height"]
    found = Llama4ImageProcessor._preprocess(
        made,
        [torch.from_numpy(np.array(picture)).permute(2, 0, 1)],
        do_resize=True,
        size=SizeDict(height=side, width=side),
        resample=None,
        do_rescale=True,
        rescale_factor=1 / 255,
        do_normalize=True,
        image_mean=(0.5,) * 3,
        image_std=(0.5,) * 3,
        max_patches=image["max_patches"],
        resize_to_max_canvas=image.get("resize_to_max_canvas", False),
        disable_grouping=True,
        return_tensors=None,
    )
    pixels = found["pixel_values"][0]
    names = SimpleNamespace(
        patch_size=14,
        downsample_ratio=4,
        _prompt_split_image=lambda *args: Llama4Processor._prompt_split_image(None, *args),
    )
    shown = {"pixel_values": [pixels], "aspect_ratios": [found["aspect_ratios"][0].tolist()]}
    return pixels.float().numpy(), Llama4Processor.replace_image_token(names, shown, 0)


def _kimi(
    picture: Image.Image, image: Mapping[str, Any], config: Mapping[str, Any]
) -> tuple[np.ndarray, str]:
    """Run the oracle without torchvision, and with Pillow's resizing, as the published processor:
    beside hard edges, torch's differs from Pillow's by several bytes."""
    import torch
    from transformers.image_utils import SizeDict
    from transformers.utils import is_torchvision_available

    assert not is_torchvision_available()
    with _standing_in(_torchvision(torch)):
        from transformers.models.kimi_k25.image_processing_kimi_k25 import Kimi_K25ImageProcessor
    from transformers.models.kimi_k25.processing_kimi_k25 import Kimi_K25Processor

    published = image.get("media_proc_cfg")
    if published is not None:
        image = {
            "size": {"max_height": published["patch_limit_on_one_side"]},
            "max_patches": published["in_patch_limit"],
            "merge_size": published["merge_kernel_size"],
            "patch_size": published["patch_size"],
        }

    def resized(images: Any, size: Any, resample: Any) -> Any:
        whole = picture.resize((size.width, size.height), Image.Resampling.BICUBIC)
        return torch.from_numpy(np.array(whole)).permute(2, 0, 1).unsqueeze(0)

    def padded(images: Any, pad_size: Any) -> Any:
        height, width = images.shape[-2:]
        more = (0, pad_size.width - width, 0, pad_size.height - height)
        return torch.nn.functional.pad(images, more)

    def normalised(images: Any, *args: Any) -> Any:
        return images.float().mul(1 / 255).sub(0.5).div(0.5)

    made = SimpleNamespace(
        resize=resized,
        pad=padded,
        rescale_and_normalize=normalised,
        patchify=lambda *args, **kw: Kimi_K25ImageProcessor.patchify(None, *args, **kw),
        merge_size=image["merge_size"],
    )
    found = Kimi_K25ImageProcessor._preprocess(
        made,
        [torch.from_numpy(np.array(picture)).permute(2, 0, 1)],
        do_resize=True,
        size=SizeDict(
            max_height=image["size"]["max_height"], max_width=image["size"]["max_height"]
        ),
        resample=None,
        do_rescale=True,
        rescale_factor=1 / 255,
        do_normalize=True,
        image_mean=(0.5,) * 3,
        image_std=(0.5,) * 3,
        patch_size=image["patch_size"],
        merge_size=image["merge_size"],
        max_patches=image["max_patches"],
        disable_grouping=True,
        return_tensors=None,
    )
    names = SimpleNamespace(image_processor=made, image_token="<|media_pad|>")
    pixels = found["pixel_values"]
    return pixels.flatten(1).numpy(), Kimi_K25Processor.replace_image_token(names, found, 0)


@contextmanager
def _standing_in(modules: dict[str, Any]) -> Iterator[None]:
    """Let modules stand in for ones that are not installed; what is imported meanwhile stays."""
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name in modules:
            del sys.modules[name]


def _torchvision(torch: Any) -> dict[str, Any]:
    """Return a double of the part of torchvision that the oracle uses."""

    def pad(images: Any, padding: list[int], fill: list[int]) -> Any:
        return torch.nn.functional.pad(images, (0, padding[2], 0, padding[3]))

    functional = SimpleNamespace(pad=pad, InterpolationMode=SimpleNamespace())
    v2 = SimpleNamespace(functional=functional)
    return {
        "torchvision": SimpleNamespace(),
        "torchvision.transforms": SimpleNamespace(v2=v2),
        "torchvision.transforms.v2": v2,
        "torchvision.transforms.v2.functional": functional,
    }


def _resized(torch: Any, images: Any, size: Any) -> Any:
    """Resize as torchvision does: by torch's interpolation of bytes, with antialiasing."""
    return torch.nn.functional.interpolate(
        images, size=(size.height, size.width), mode="bilinear", antialias=True
    )


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
        _pixtral,
        {"size": {"longest_edge": 540}, "patch_size": {"height": 14, "width": 14}},
        {"patch_size": 14, "spatial_merge_size": 2},
    ),
    "mistral3_defaults": _Case(
        {"model_type": "mistral3", "spatial_merge_size": 1, "vision_config": {"patch_size": 16}},
        _pixtral,
        {"do_center_crop": None},
    ),
    "qwen3_vl": _Case({"model_type": "qwen3_vl", "vision_config": {}}, _qwen, _QWEN3_IMAGE),
    "qwen2_style": _Case(
        {"model_type": "qwen3_5", "vision_config": {"patch_size": 14}},
        _qwen,
        {"min_pixels": 3136, "max_pixels": 401_408},
    ),
    "gemma3": _Case(
        {
            "model_type": "gemma3",
            "mm_tokens_per_image": 256,
            "vision_config": {"image_size": 448, "patch_size": 14},
        },
        _gemma3,
        {"size": {"height": 448, "width": 448}, "do_pan_and_scan": None, "image_seq_length": 256},
    ),
    "gemma4": _Case(
        {"model_type": "gemma4", "vision_config": {}}, _gemma4, {"max_soft_tokens": 140}
    ),
    "gemma4_defaults": _Case({"model_type": "gemma4", "vision_config": {}}, _gemma4),
    "kimi_k25": _Case(
        {"model_type": "kimi_k25", "vision_config": {"merge_kernel_size": [2, 2]}},
        _kimi,
        {
            "size": {"max_height": 40, "max_width": 40},
            "max_patches": 1200,
            "patch_size": 14,
            "merge_size": 2,
        },
    ),
    "kimi_k25_published": _Case(
        {"model_type": "kimi_k25", "vision_config": {"patch_size": 14}},
        _kimi,
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
        _llama4,
        {"size": {"height": 112, "width": 112}, "max_patches": 16},
        {"patch_size": 14},
        apart=_ONE_BYTE_HALVED,
    ),
    "llama4_max_canvas": _Case(
        {"model_type": "llama4", "vision_config": {"image_size": 84}},
        _llama4,
        {"size": {"height": 84, "width": 84}, "max_patches": 5, "resize_to_max_canvas": True},
        apart=_ONE_BYTE_HALVED,
    ),
    "gemma3_pan_and_scan": _Case(
        {"model_type": "gemma3", "mm_tokens_per_image": 64, "vision_config": {}},
        _gemma3,
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
        assert _written(expansion) == text, (seed, picture.size)
        assert item.grid == ours.plan(picture.height, picture.width)
        assert item.tokens == ours.tokens_of(item.grid) == _filled(expansion)


def _written(expansion: Expansion) -> str:
    return "".join(
        piece if isinstance(piece, str) else "".join(run.token * run.count for run in piece)
        for piece in expansion
    )


def _filled(expansion: Expansion) -> int:
    groups = [piece for piece in expansion if not isinstance(piece, str)]
    return sum(run.count for group in groups for run in group if run.is_image)
