"""Images of Qwen3-VL, Qwen3.5 and Qwen2-VL: patches of a picture of any size, merged two by two.

pixels: [patches, 3 × temporal × patch × patch], the patches of a merged one adjacent, each value of
a channel repeated over time, as a still picture fills a temporal patch. grid: 1, height and width
in patches, before merging. Sizes are rounded to whole merged patches, and the number of pixels is
kept between two bounds. Oracle: transformers' Qwen2VLImageProcessorPil and Qwen3VLProcessor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from PIL import Image

from atom.errors import ModelError
from atom.images.errors import ImageError
from atom.images.item import ImageItem, Pixels, image_item
from atom.images.processing.pixels import CLIP_MEAN, CLIP_STD, PixelRule, pixel_rule
from atom.images.processing.processor import Expansion, Grid, ImageMarks, image_alone
from atom.images.processing.settings import (
    PREPROCESSOR_FILE,
    ProcessorSettings,
    must_agree,
    whole_number,
)

_LEAST_PIXELS, _MOST_PIXELS = 56 * 56, 28 * 28 * 1280
_MOST_RATIO = 200
_PATCH, _TEMPORAL, _MERGE = 14, 2, 2  # of Qwen2VLImageProcessor
_ENCODER_PATCH = 16  # of Qwen3VLVisionConfig


@dataclass(frozen=True, slots=True)
class QwenVLProcessor:
    """Processes images of Qwen-VL. patch: side of a patch in pixels; merge: patches on a side that
    become one token; temporal: frames of a patch; least, most: pixels of a resized picture."""

    rule: PixelRule
    patch: int
    merge: int
    temporal: int
    least: int
    most: int
    marks: ImageMarks

    def plan(self, height: int, width: int) -> Grid:
        """Return the grid of a picture of this size. Raises `ImageError` for a very long one."""
        if max(height, width) / min(height, width) > _MOST_RATIO:
            raise ImageError(
                f"the picture is {width} by {height} pixels, and this model takes pictures whose "
                f"longer edge is at most {_MOST_RATIO} times the shorter one"
            )
        side = self.patch * self.merge
        rows, columns = (round(edge / side) for edge in (height, width))
        if rows * columns * side * side > self.most:
            beta = math.sqrt(height * width / self.most)
            rows, columns = (max(1, math.floor(edge / beta / side)) for edge in (height, width))
        elif rows * columns * side * side < self.least:
            beta = math.sqrt(self.least / (height * width))
            rows, columns = (math.ceil(edge * beta / side) for edge in (height, width))
        return 1, rows * self.merge, columns * self.merge

    def tokens_of(self, grid: Grid) -> int:
        """Return the number of merged patches."""
        return grid[1] * grid[2] // self.merge**2

    def expansion_of(self, grid: Grid) -> Expansion:
        """Return the image's tokens; the template writes the marks around them."""
        return image_alone(self.marks, self.tokens_of(grid))

    def process(self, picture: Image.Image) -> ImageItem:
        """Resize, normalise and cut into patches."""
        grid = self.plan(picture.height, picture.width)
        resized = self.rule.resized(picture, grid[1] * self.patch, grid[2] * self.patch)
        return image_item(self._patches(self.rule.values(resized)), grid, self.tokens_of(grid))

    def _patches(self, values: Pixels) -> Pixels:
        patch, merge = self.patch, self.merge
        rows, columns = (edge // (patch * merge) for edge in values.shape[1:])
        cut = values.reshape(3, rows, merge, patch, columns, merge, patch)
        ordered = cut.transpose(1, 4, 2, 5, 0, 3, 6)  # row, column, in a merged patch, channel, …
        still = np.broadcast_to(
            ordered[:, :, :, :, :, None], (*ordered.shape[:5], self.temporal, patch, patch)
        )
        return still.reshape(rows * columns * merge**2, -1)


def qwen_vl_processor(settings: ProcessorSettings) -> QwenVLProcessor:
    """Build the processor of a checkpoint. Raises `ModelError`."""
    image, encoder = settings.image, settings.encoder
    sizes: dict[str, int] = {}
    for key, default, of_encoder in (
        ("patch_size", _PATCH, _ENCODER_PATCH),
        ("temporal_patch_size", _TEMPORAL, _TEMPORAL),
        ("merge_size", _MERGE, _MERGE),
    ):
        sizes[key] = whole_number(image, key, default)
        name = "spatial_merge_size" if key == "merge_size" else key
        must_agree(key, sizes[key], whole_number(encoder, name, of_encoder))
    least, most = _pixel_bounds(settings)
    pad = settings.token("image_token", "<|image_pad|>")
    return QwenVLProcessor(
        rule=pixel_rule(image, resample=Image.Resampling.BICUBIC, mean=CLIP_MEAN, std=CLIP_STD),
        patch=sizes["patch_size"],
        merge=sizes["merge_size"],
        temporal=sizes["temporal_patch_size"],
        least=least,
        most=most,
        marks=ImageMarks(pad, (pad,)),
    )


def _pixel_bounds(settings: ProcessorSettings) -> tuple[int, int]:
    """Return the least and most pixels: `min_pixels` and `max_pixels` override `size`."""
    image = settings.image
    size = image.get("size")
    if size is None:
        size = {"shortest_edge": _LEAST_PIXELS, "longest_edge": _MOST_PIXELS}
    if not isinstance(size, dict):
        raise ModelError(f"{PREPROCESSOR_FILE}: size needs shortest_edge and longest_edge")
    bounds = []
    for key, other in (("shortest_edge", "min_pixels"), ("longest_edge", "max_pixels")):
        given = image if image.get(other) is not None else size
        name = other if given is image else key
        if given.get(name) is None:
            raise ModelError(f"{PREPROCESSOR_FILE}: size needs shortest_edge and longest_edge")
        bounds.append(whole_number(given, name, 1))
    return bounds[0], bounds[1]
