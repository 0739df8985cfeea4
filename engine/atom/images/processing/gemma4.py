"""Images of Gemma 4: patches of a picture that is scaled to a number of tokens.

pixels: [patches, patch × patch × 3], row by row, each patch's colours together, in 0 to 1; nothing
is padded. grid: 1, height and width in patches, before pooling. A picture is enlarged or reduced to
the most patches that keep its ratio and fill whole pooled squares. Oracle: transformers'
Gemma4ImageProcessorPil and Gemma4Processor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from PIL import Image

from atom.errors import ModelError
from atom.images.errors import ImageError
from atom.images.item import ImageItem, Pixels, image_item
from atom.images.processing.pixels import PixelRule, pixel_rule
from atom.images.processing.processor import Expansion, Grid, ImageMarks, TokenRun
from atom.images.processing.settings import (
    PREPROCESSOR_FILE,
    ProcessorSettings,
    must_agree,
    whole_number,
)

_PATCH, _POOL, _TOKENS = 16, 3, 280  # of Gemma4ImageProcessor and Gemma4VisionConfig
_TOKEN_COUNTS = (70, 140, 280, 560, 1120)


@dataclass(frozen=True, slots=True)
class Gemma4Processor:
    """Processes images of Gemma 4. patch: side of a patch in pixels; pool: patches on a side that
    become one token; most: tokens of a picture; around: the tokens before and after it."""

    rule: PixelRule
    patch: int
    pool: int
    most: int
    marks: ImageMarks
    around: tuple[str, str]

    def plan(self, height: int, width: int) -> Grid:
        """Return the grid of a picture of this size. Raises `ImageError` for a very long one."""
        side, most_patches = self.patch * self.pool, self.most * self.pool**2
        factor = math.sqrt(most_patches * self.patch**2 / (height * width))
        rows, columns = (math.floor(factor * edge / side) for edge in (height, width))
        if rows == 0 and columns == 0:
            raise ImageError(f"the picture of {width} by {height} pixels has no patch here")
        if rows == 0:
            rows, columns = 1, min(width // height, self.most)
        elif columns == 0:
            rows, columns = min(height // width, self.most), 1
        return 1, rows * self.pool, columns * self.pool

    def tokens_of(self, grid: Grid) -> int:
        """Return the number of pooled patches."""
        return grid[1] * grid[2] // self.pool**2

    def expansion_of(self, grid: Grid) -> Expansion:
        """Return the image's tokens between its marks."""
        begin, end = self.around
        image = TokenRun(self.marks.placeholder, self.tokens_of(grid), True)
        return ((TokenRun(begin, 1, False), image, TokenRun(end, 1, False)),)

    def process(self, picture: Image.Image) -> ImageItem:
        """Resize, rescale and cut into patches."""
        grid = self.plan(picture.height, picture.width)
        resized = self.rule.resized(picture, grid[1] * self.patch, grid[2] * self.patch)
        return image_item(self._patches(self.rule.values(resized)), grid, self.tokens_of(grid))

    def _patches(self, values: Pixels) -> Pixels:
        rows, columns = (edge // self.patch for edge in values.shape[1:])
        cut = values.reshape(3, rows, self.patch, columns, self.patch)
        return cut.transpose(1, 3, 2, 4, 0).reshape(rows * columns, -1)


def gemma4_processor(settings: ProcessorSettings) -> Gemma4Processor:
    """Build the processor of a checkpoint. Raises `ModelError`."""
    image, encoder = settings.image, settings.encoder
    if "resample" in image and image["resample"] is None:  # the default of transformers' resizing
        image = {**image, "resample": int(Image.Resampling.BILINEAR)}
    sizes = {}
    for key, default in (("patch_size", _PATCH), ("pooling_kernel_size", _POOL)):
        sizes[key] = whole_number(image, key, default)
        must_agree(key, sizes[key], whole_number(encoder, key, default))
    most = whole_number(image, "max_soft_tokens", _TOKENS)
    if most not in _TOKEN_COUNTS:
        raise ModelError(
            f"{PREPROCESSOR_FILE}: max_soft_tokens is {most}, and must be one of "
            f"{', '.join(map(str, _TOKEN_COUNTS))}"
        )
    picture = settings.token("image_token", "<|image|>")
    return Gemma4Processor(
        rule=pixel_rule(
            image,
            resample=Image.Resampling.BICUBIC,
            mean=(0.0, 0.0, 0.0),
            std=(1.0, 1.0, 1.0),
            normalises=False,
        ),
        patch=sizes["patch_size"],
        pool=sizes["pooling_kernel_size"],
        most=most,
        marks=ImageMarks(picture, (picture,)),
        around=(settings.token("boi_token", "<|image>"), settings.token("eoi_token", "<image|>")),
    )
