"""Images of Gemma 3: a square of a fixed size, and squares of its parts if the checkpoint asks.

pixels: [1 + crops, 3, side, side], the whole picture first. grid: pictures, and height and width of
one in patches of the encoder, before pooling. Each picture has mm_tokens_per_image tokens. Oracle:
transformers' Gemma3ImageProcessorPil and Gemma3Processor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from PIL import Image

from atom.images.item import ImageItem, image_item
from atom.images.processing.pixels import HALF, PixelRule, pixel_rule
from atom.images.processing.processor import Expansion, Grid, ImageMarks, TokenRun
from atom.images.processing.settings import (
    Fields,
    ProcessorSettings,
    decimal,
    must_agree,
    square_side,
    switch,
    whole_number,
)

_SIDE = 224  # of Gemma3ImageProcessor; and of SiglipVisionConfig
_PATCH = 16  # of SiglipVisionConfig
_TOKENS = 256  # of Gemma3Config and Gemma3Processor
_BEFORE = "Here is the original image "
_BETWEEN = " and here are some crops to help you see better "


@dataclass(frozen=True, slots=True)
class PanAndScan:
    """The rule that cuts a long picture into parts. least_side: of a part, in pixels; most: number
    of parts; least_ratio: of the longer edge to the shorter one."""

    least_side: int
    most: int
    least_ratio: float

    def boxes(self, height: int, width: int) -> list[tuple[int, int, int, int]]:
        """Return left, top, right and bottom of each part; empty if the picture is not cut."""
        long, short = max(height, width), min(height, width)
        if long / short < self.least_ratio:
            return []
        wanted = min(long // self.least_side, math.floor(long / short + 0.5))
        parts = min(self.most, max(2, wanted))
        step = math.ceil(long / parts)
        if min(step, short) < self.least_side:
            return []
        starts = [step * part for part in range(parts)]
        if width >= height:
            return [(start, 0, min(start + step, width), height) for start in starts]
        return [(0, start, width, min(start + step, height)) for start in starts]


@dataclass(frozen=True, slots=True)
class Gemma3Processor:
    """Processes images of Gemma 3. side: of the square, in pixels; patches: on a side of it;
    tokens: of one square; cuts: None if pictures are not cut."""

    rule: PixelRule
    side: int
    patches: int
    tokens: int
    cuts: PanAndScan | None
    marks: ImageMarks
    image: str
    end: str

    def plan(self, height: int, width: int) -> Grid:
        """Return the grid of a picture of this size."""
        return 1 + len(self._boxes(height, width)), self.patches, self.patches

    def tokens_of(self, grid: Grid) -> int:
        """Return the tokens of all squares."""
        return grid[0] * self.tokens

    def expansion_of(self, grid: Grid) -> Expansion:
        """Return the tokens of each square between empty lines, with words about the parts."""
        begin, image, end = self.marks.placeholder, self.image, self.end
        runs = (
            TokenRun(begin, 1, False),
            TokenRun(image, self.tokens, True),
            TokenRun(end, 1, False),
        )
        blank = "\n\n"
        if grid[0] == 1:
            return blank, runs, blank
        found: list[str | tuple[TokenRun, ...]] = [_BEFORE + blank, runs, blank + _BETWEEN + blank]
        for part in range(1, grid[0]):
            found += [runs, blank if part == grid[0] - 1 else f"{blank} {blank}"]
        return tuple(found)

    def process(self, picture: Image.Image) -> ImageItem:
        """Resize and normalise the picture and its parts."""
        boxes = self._boxes(picture.height, picture.width)
        pictures = [picture, *(picture.crop(box) for box in boxes)]
        grid = 1 + len(boxes), self.patches, self.patches
        values = [
            self.rule.values(self.rule.resized(each, self.side, self.side)) for each in pictures
        ]
        return image_item(np.stack(values), grid, self.tokens_of(grid))

    def _boxes(self, height: int, width: int) -> list[tuple[int, int, int, int]]:
        return [] if self.cuts is None else self.cuts.boxes(height, width)


def gemma3_processor(settings: ProcessorSettings, config: Fields) -> Gemma3Processor:
    """Build the processor of a checkpoint. config: its config.json. Raises `ModelError`."""
    image = settings.image
    side = square_side(image, "size", _SIDE)
    must_agree("size", side, whole_number(settings.encoder, "image_size", _SIDE))
    tokens = whole_number(config, "mm_tokens_per_image", _TOKENS)
    must_agree("image_seq_length", _sequence_length(settings, tokens), tokens)
    begin = settings.token("boi_token", "<start_of_image>")
    middle = settings.token("image_token", "<image_soft_token>")
    end = settings.token("eoi_token", "<end_of_image>")
    return Gemma3Processor(
        rule=pixel_rule(image, resample=Image.Resampling.BILINEAR, mean=HALF, std=HALF),
        side=side,
        patches=side // whole_number(settings.encoder, "patch_size", _PATCH),
        tokens=tokens,
        cuts=_cuts(image),
        marks=ImageMarks(begin, (begin, middle)),
        image=middle,
        end=end,
    )


def _sequence_length(settings: ProcessorSettings, tokens: int) -> int:
    """Return the tokens that the processor's file states, in either of its two places."""
    for fields in (settings.whole, settings.image):
        if fields.get("image_seq_length") is not None:
            return whole_number(fields, "image_seq_length", tokens)
    return tokens


def _cuts(image: Fields) -> PanAndScan | None:
    if not switch(image, "do_pan_and_scan", False):
        return None
    return PanAndScan(
        least_side=whole_number(image, "pan_and_scan_min_crop_size", 256),
        most=whole_number(image, "pan_and_scan_max_num_crops", 4),
        least_ratio=decimal(image, "pan_and_scan_min_ratio_to_activate", 1.2),
    )
