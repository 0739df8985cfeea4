"""Images of Kimi-K2.5: patches of a picture of any size, merged two by two.

pixels: [patches, 3 × patch × patch], row by row. grid: 1, height and width in patches, before
merging. A picture is never enlarged: it is reduced to the most patches, and padded with black at
its right and bottom edges to whole merged patches. Oracle: transformers' Kimi_K25ImageProcessor and
Kimi_K25Processor. The published checkpoints have the same fields in `media_proc_cfg`, under other
names.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from PIL import Image

from atom.errors import ModelError
from atom.images.item import ImageItem, Pixels, image_item
from atom.images.processing.pixels import HALF, PixelRule, pixel_rule
from atom.images.processing.processor import Expansion, Grid, ImageMarks, image_alone
from atom.images.processing.settings import (
    PREPROCESSOR_FILE,
    Fields,
    ProcessorSettings,
    must_agree,
    whole_number,
)

_PATCH, _MERGE = 14, 2
_MOST_PATCHES, _MOST_SIDE = 16_384, 512
# transformers' name of each field of `media_proc_cfg`.
_PUBLISHED = {
    "in_patch_limit": "max_patches",
    "merge_kernel_size": "merge_size",
    "patch_size": "patch_size",
    "image_mean": "image_mean",
    "image_std": "image_std",
}
_SIDE_LIMIT = "patch_limit_on_one_side"


@dataclass(frozen=True, slots=True)
class KimiProcessor:
    """Processes images of Kimi-K2.5. patch: side of a patch in pixels; merge: patches on a side
    that become one token; most: patches of a picture; most_side: of one of its sides."""

    rule: PixelRule
    patch: int
    merge: int
    most: int
    most_side: int
    marks: ImageMarks

    def plan(self, height: int, width: int) -> Grid:
        """Return the grid of a picture of this size."""
        side = self.patch * self.merge
        rows, columns = (-(-edge // side) for edge in self._reduced(height, width))
        return 1, rows * self.merge, columns * self.merge

    def tokens_of(self, grid: Grid) -> int:
        """Return the number of merged patches."""
        return grid[1] * grid[2] // self.merge**2

    def expansion_of(self, grid: Grid) -> Expansion:
        """Return the image's tokens; the template writes the marks around them."""
        return image_alone(self.marks, self.tokens_of(grid))

    def process(self, picture: Image.Image) -> ImageItem:
        """Reduce, pad, normalise and cut into patches."""
        grid = self.plan(picture.height, picture.width)
        reduced = self.rule.resized(picture, *self._reduced(picture.height, picture.width))
        whole = Image.new("RGB", (grid[2] * self.patch, grid[1] * self.patch))
        whole.paste(reduced)
        return image_item(self._patches(self.rule.values(whole)), grid, self.tokens_of(grid))

    def _reduced(self, height: int, width: int) -> tuple[int, int]:
        """Return the size of a picture before it is padded."""
        patches = max(1, height // self.patch) * max(1, width // self.patch)
        longest = self.most_side * self.patch
        scale = min(1.0, math.sqrt(self.most / patches), longest / height, longest / width)
        new_height, new_width = (max(1, int(edge * scale)) for edge in (height, width))
        return min(new_height, longest), min(new_width, longest)

    def _patches(self, values: Pixels) -> Pixels:
        rows, columns = (edge // self.patch for edge in values.shape[1:])
        cut = values.reshape(3, rows, self.patch, columns, self.patch)
        return cut.transpose(1, 3, 0, 2, 4).reshape(rows * columns, -1)


def kimi_processor(settings: ProcessorSettings) -> KimiProcessor:
    """Build the processor of a checkpoint. Raises `ModelError`."""
    image = _with_usual_names(settings.image)
    patch, merge = whole_number(image, "patch_size", _PATCH), _merge(image)
    must_agree("patch_size", patch, whole_number(settings.encoder, "patch_size", _PATCH))
    of_encoder = settings.encoder.get("merge_kernel_size")
    if isinstance(of_encoder, list) and of_encoder:
        of_encoder = of_encoder[0]
    must_agree("merge_size", merge, whole_number({"merge": of_encoder}, "merge", _MERGE))
    pad = settings.token("image_token", "<|media_pad|>")
    return KimiProcessor(
        rule=pixel_rule(image, resample=Image.Resampling.BICUBIC, mean=HALF, std=HALF),
        patch=patch,
        merge=merge,
        most=whole_number(image, "max_patches", _MOST_PATCHES),
        most_side=_most_side(image),
        marks=ImageMarks(pad, (pad,)),
    )


def _with_usual_names(image: Fields) -> Fields:
    """Return the fields of a published checkpoint under transformers' names."""
    published = image.get("media_proc_cfg")
    if not isinstance(published, Mapping):
        return image
    if published.get("fixed_output_tokens") is not None:
        raise ModelError(
            f"{PREPROCESSOR_FILE}: fixed_output_tokens must be null, and is "
            f"{published['fixed_output_tokens']!r}; start the server with --language-model-only to "
            "serve the text part alone"
        )
    for key in ("in_patch_limit", "patch_size", _SIDE_LIMIT):
        whole_number(published, key, 1)  # a refusal has the name in the file
    whole_number(_equal_sides(published, "merge_kernel_size"), "merge_kernel_size", 1)
    found = {name: published[key] for key, name in _PUBLISHED.items() if key in published}
    side = published.get(_SIDE_LIMIT)
    return found if side is None else {**found, "size": {"max_height": side, "max_width": side}}


def _merge(image: Fields) -> int:
    return whole_number(_equal_sides(image, "merge_size"), "merge_size", _MERGE)


def _equal_sides(fields: Fields, key: str) -> Fields:
    """Return the field as one number if it is a list of equal ones."""
    value = fields.get(key)
    if isinstance(value, list) and value and all(each == value[0] for each in value):
        return {key: value[0]}
    return fields


def _most_side(image: Fields) -> int:
    size = image.get("size")
    if size is None:
        return _MOST_SIDE
    sides = size if isinstance(size, Mapping) else {}
    height, width = (sides.get(f"max_{name}") for name in ("height", "width"))
    if height is None or height != width:
        raise ModelError(
            f"{PREPROCESSOR_FILE}: size must have equal max_height and max_width, in patches, and "
            f"is {size!r}"
        )
    return whole_number(sides, "max_height", _MOST_SIDE)
