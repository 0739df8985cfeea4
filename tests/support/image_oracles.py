"""transformers' image processors as oracles: a picture's pixels, and the text of its tokens.

They get the fields of preprocessor_config.json and config.json. torchvision is not installed: the
processors that need it run on doubles of the few functions that they call.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
from PIL import Image

from atom.images.processing.processor import Expansion

Oracle = Callable[[Image.Image, Mapping[str, Any], Mapping[str, Any]], tuple[np.ndarray, str]]
# PixtralProcessor takes one function from the processor that needs torchvision. Its twin has it.
_TORCHVISIONS = "transformers.models.pixtral.image_processing_pixtral"


def pixtral(
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


def qwen(
    picture: Image.Image, image: Mapping[str, Any], config: Mapping[str, Any]
) -> tuple[np.ndarray, str]:
    from transformers.models.qwen2_vl import image_processing_pil_qwen2_vl as pil_qwen2_vl
    from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor

    processor = pil_qwen2_vl.Qwen2VLImageProcessorPil(**image)
    found = processor(picture)
    names = SimpleNamespace(image_processor=processor, image_token="<|image_pad|>")
    return found["pixel_values"], Qwen3VLProcessor.replace_image_token(names, found, 0)


def gemma3(
    picture: Image.Image, image: Mapping[str, Any], config: Mapping[str, Any]
) -> tuple[np.ndarray, str]:
    from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
    from transformers.models.gemma3.processing_gemma3 import Gemma3Processor

    found = Gemma3ImageProcessorPil(**image)(picture)
    soft = "<image_soft_token>" * config["mm_tokens_per_image"]
    names = SimpleNamespace(full_image_sequence=f"\n\n<start_of_image>{soft}<end_of_image>\n\n")
    return np.stack(found["pixel_values"]), Gemma3Processor.replace_image_token(names, found, 0)


def gemma4(
    picture: Image.Image, image: Mapping[str, Any], config: Mapping[str, Any]
) -> tuple[np.ndarray, str]:
    from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil
    from transformers.models.gemma4.processing_gemma4 import Gemma4Processor

    found = Gemma4ImageProcessorPil(**image)(picture)
    names = SimpleNamespace(boi_token="<|image>", image_token="<|image|>", eoi_token="<image|>")
    real = (found["image_position_ids"][0] >= 0).all(axis=-1)
    return found["pixel_values"][0][real], Gemma4Processor.replace_image_token(names, found, 0)


def llama4(
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
        resize=lambda images, size, resample: _resized(torch, images, size, resample),
        rescale_and_normalize=lambda *args: Llama4ImageProcessor.rescale_and_normalize(made, *args),
        normalize=lambda images, mean, std: _normalised(torch, images, mean, std),
    )
    given = _given(image, Llama4ImageProcessor)
    found = Llama4ImageProcessor._preprocess(
        made,
        [torch.from_numpy(np.array(picture)).permute(2, 0, 1)],
        **_scaling(given),
        size=SizeDict(height=given["size"]["height"], width=given["size"]["width"]),
        resample=given["resample"],
        max_patches=given["max_patches"],
        resize_to_max_canvas=given["resize_to_max_canvas"],
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


def kimi(
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
        side = published["patch_limit_on_one_side"]
        image = {
            "size": {"max_height": side, "max_width": side},
            "max_patches": published["in_patch_limit"],
            "merge_size": published["merge_kernel_size"],
            "patch_size": published["patch_size"],
            "image_mean": published["image_mean"],
            "image_std": published["image_std"],
        }
    given = _given(image, Kimi_K25ImageProcessor)
    if given["size"]["max_height"] != given["size"]["max_width"]:
        raise ValueError("as its _validate_preprocess_kwargs")

    def resized(images: Any, size: Any, resample: Any) -> Any:
        whole = picture.resize((size.width, size.height), Image.Resampling(resample))
        return torch.from_numpy(np.array(whole)).permute(2, 0, 1).unsqueeze(0)

    def padded(images: Any, pad_size: Any) -> Any:
        height, width = images.shape[-2:]
        more = (0, pad_size.width - width, 0, pad_size.height - height)
        return torch.nn.functional.pad(images, more)

    def normalised(
        images: Any, do_rescale: Any, factor: Any, do_normalize: Any, mean: Any, std: Any
    ) -> Any:
        images = images.float() * (factor if do_rescale else 1)
        return _normalised(torch, images, mean, std) if do_normalize else images

    made = SimpleNamespace(
        resize=resized,
        pad=padded,
        rescale_and_normalize=normalised,
        patchify=lambda *args, **kw: Kimi_K25ImageProcessor.patchify(None, *args, **kw),
        merge_size=given["merge_size"],
    )
    found = Kimi_K25ImageProcessor._preprocess(
        made,
        [torch.from_numpy(np.array(picture)).permute(2, 0, 1)],
        **_scaling(given),
        size=SizeDict(**given["size"]),
        resample=given["resample"],
        patch_size=given["patch_size"],
        merge_size=given["merge_size"],
        max_patches=given["max_patches"],
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


def _resized(torch: Any, images: Any, size: Any, resample: Any) -> Any:
    """Resize as torchvision does: by torch's interpolation of bytes, with antialiasing."""
    mode = {Image.Resampling.BILINEAR: "bilinear", Image.Resampling.BICUBIC: "bicubic"}[resample]
    return torch.nn.functional.interpolate(
        images, size=(size.height, size.width), mode=mode, antialias=True
    )


def _normalised(torch: Any, images: Any, mean: Any, std: Any) -> Any:
    """Normalise as torchvision does, in the dtype of the images."""
    sides = (
        torch.tensor([each] * 3 if isinstance(each, float) else each, dtype=images.dtype)
        for each in (mean, std)
    )
    mean, std = (side.view(-1, 1, 1) for side in sides)
    return images.sub(mean).div_(std)


def _given(image: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """Return the fields of a class in transformers: those of a file, null too, else its own."""
    names = [name for name in vars(kind) if not name.startswith("_")]
    own = {name: getattr(kind, name) for name in ("rescale_factor", *names)}
    return {name: image.get(name, value) for name, value in own.items()}


def _scaling(given: Mapping[str, Any]) -> dict[str, Any]:
    names = (
        "do_resize", "do_rescale", "rescale_factor", "do_normalize", "image_mean", "image_std",
    )  # fmt: skip
    return {name: given[name] for name in names}


def written(expansion: Expansion) -> str:
    """Return an image's tokens as text."""
    return "".join(
        piece if isinstance(piece, str) else "".join(run.token * run.count for run in piece)
        for piece in expansion
    )
