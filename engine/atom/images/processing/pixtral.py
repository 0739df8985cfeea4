"""Images of Mistral Small 3 (Pixtral's encoder): one picture of any size, its rows ended by breaks.

pixels: [3, height, width], both multiples of patch_size × spatial_merge_size. grid: 1, height and
width in patches of the encoder, before merging. The longer edge is limited, and the picture is
never enlarged but to whole patches. Oracle: transformers' PixtralImageProcessorPil and
PixtralProcessor.
"""

from __future__ import annotations

from dataclasses import dataclass

from PIL import Image

from atom.errors import ModelError
from atom.images.item import ImageItem, image_item
from atom.images.processing.pixels import CLIP_MEAN, CLIP_STD, PixelRule, pixel_rule
from atom.images.processing.processor import Expansion, Grid, ImageMarks, TokenRun
from atom.images.processing.settings import (
    PREPROCESSOR_FILE,
    Fields,
    ProcessorSettings,
    must_agree,
    whole_number,
)

_IMAGE, _BREAK, _END = "[IMG]", "[IMG_BREAK]", "[IMG_END]"
_MARKS = ImageMarks(_IMAGE, (_IMAGE,))
_LONGEST_EDGE = 1024
_ENCODER_PATCH, _ENCODER_MERGE = 16, 2  # of PixtralVisionConfig and Mistral3Config


@dataclass(frozen=True, slots=True)
class PixtralProcessor:
    """Processes images of Pixtral. patch: side of a patch in pixels; merge: patches on a side that
    become one token; most: height and width of the largest picture."""

    rule: PixelRule
    patch: int
    merge: int
    most: tuple[int, int]
    marks: ImageMarks = _MARKS

    def plan(self, height: int, width: int) -> Grid:
        """Return the grid of a picture of this size."""
        ratio = max(height / self.most[0], width / self.most[1])
        if ratio > 1:
            height, width = int(height / ratio), int(width / ratio)
        side = self.patch * self.merge
        # An edge of 0, of a very long picture, becomes no patch in transformers, and fails there.
        rows, columns = (max(1, (edge - 1) // side + 1) for edge in (height, width))
        return 1, rows * self.merge, columns * self.merge

    def tokens_of(self, grid: Grid) -> int:
        """Return the number of merged patches."""
        return (grid[1] // self.merge) * (grid[2] // self.merge)

    def expansion_of(self, grid: Grid) -> Expansion:
        """Return rows of image tokens, each ended by a break, and the last by the end."""
        rows, columns = grid[1] // self.merge, grid[2] // self.merge
        found: list[TokenRun] = []
        for row in range(rows):
            found.append(TokenRun(_IMAGE, columns, True))
            found.append(TokenRun(_END if row == rows - 1 else _BREAK, 1, False))
        return (tuple(found),)

    def process(self, picture: Image.Image) -> ImageItem:
        """Resize and normalise."""
        grid = self.plan(picture.height, picture.width)
        resized = self.rule.resized(picture, grid[1] * self.patch, grid[2] * self.patch)
        return image_item(self.rule.values(resized), grid, self.tokens_of(grid))


def pixtral_processor(settings: ProcessorSettings, config: Fields) -> PixtralProcessor:
    """Build the processor of a checkpoint. config: its config.json. Raises `ModelError`."""
    patch = whole_number(settings.encoder, "patch_size", _ENCODER_PATCH)
    merge = whole_number(config, "spatial_merge_size", _ENCODER_MERGE)
    must_agree("patch_size", whole_number(settings.whole, "patch_size", patch), patch)
    must_agree(
        "spatial_merge_size", whole_number(settings.whole, "spatial_merge_size", merge), merge
    )
    return PixtralProcessor(
        rule=pixel_rule(
            settings.image, resample=Image.Resampling.BICUBIC, mean=CLIP_MEAN, std=CLIP_STD
        ),
        patch=patch,
        merge=merge,
        most=_largest(settings.image),
    )


def _largest(fields: Fields) -> tuple[int, int]:
    size = fields.get("size")
    if size is None:
        return _LONGEST_EDGE, _LONGEST_EDGE
    if not isinstance(size, dict):
        edge = whole_number(fields, "size", _LONGEST_EDGE)
        return edge, edge
    if size.get("longest_edge") is not None:
        edge = whole_number(size, "longest_edge", _LONGEST_EDGE)
        return edge, edge
    if size.get("height") is None or size.get("width") is None:
        raise ModelError(f"{PREPROCESSOR_FILE}: size needs longest_edge, or height and width")
    return whole_number(size, "height", 1), whole_number(size, "width", 1)
