"""Images of Llama 4: tiles of a picture on the canvas that fits it best, and the whole picture.

pixels: [tiles, 3, side, side], the tiles of the canvas row by row and, if there are several, the
whole picture as the last one. grid: 1, height and width of the canvas in patches. Values are
rounded to bfloat16, as the model was trained. Oracle: transformers' Llama4ImageProcessor and
Llama4Processor.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from PIL import Image

from atom.images.item import ImageItem, image_item
from atom.images.processing.pixels import HALF, PixelRule, pixel_rule
from atom.images.processing.processor import Expansion, Grid, ImageMarks, TokenRun
from atom.images.processing.settings import (
    ProcessorSettings,
    decimal,
    must_agree,
    square_side,
    switch,
    whole_number,
)

_SIDE, _TILES = 336, 16  # of Llama4ImageProcessor
_ENCODER_SIDE, _PATCH, _SHUFFLE = 448, 14, 0.5  # of Llama4VisionConfig
_PICTURE, _TOKEN = "<|image|>", "<|patch|>"
_BEGIN, _END = "<|image_start|>", "<|image_end|>"
_BESIDE, _BELOW = "<|tile_x_separator|>", "<|tile_y_separator|>"

Size = tuple[int, int]  # height and width


@dataclass(frozen=True, slots=True)
class Llama4Processor:
    """Processes images of Llama 4. side: of a tile in pixels; patches: on a side of a tile; tokens:
    of a tile; canvases: rows and columns of tiles, in order of preference; enlarges: the picture
    fills the largest canvas that its ratio allows."""

    rule: PixelRule
    side: int
    patches: int
    tokens: int
    canvases: tuple[Size, ...]
    enlarges: bool
    marks: ImageMarks

    def plan(self, height: int, width: int) -> Grid:
        """Return the grid of the canvas for a picture of this size."""
        rows, columns = self._canvas(height, width)
        return 1, rows * self.patches, columns * self.patches

    def tokens_of(self, grid: Grid) -> int:
        """Return the tokens of all tiles."""
        tiles = (grid[1] // self.patches) * (grid[2] // self.patches)
        return (tiles + (tiles > 1)) * self.tokens

    def expansion_of(self, grid: Grid) -> Expansion:
        """Return the tiles with their separators, and then the whole picture."""
        rows, columns = grid[1] // self.patches, grid[2] // self.patches
        tile = TokenRun(_TOKEN, self.tokens, True)
        found = [TokenRun(_BEGIN, 1, False)]
        for _ in range(rows if rows * columns > 1 else 0):
            for column in range(columns):
                found += [tile, TokenRun(_BELOW if column == columns - 1 else _BESIDE, 1, False)]
        found += [TokenRun(_PICTURE, 1, False), tile, TokenRun(_END, 1, False)]
        return (tuple(found),)

    def process(self, picture: Image.Image) -> ImageItem:
        """Resize, pad to the canvas and cut into tiles."""
        height, width = picture.height, picture.width
        rows, columns = self._canvas(height, width)
        fitted = self.rule.resized(picture, *self._fitted(height, width, (rows, columns)))
        canvas = Image.new("RGB", (columns * self.side, rows * self.side))
        canvas.paste(fitted, (0, 0))
        cut = self.rule.values(canvas).reshape(3, rows, self.side, columns, self.side)
        tiles = cut.transpose(1, 3, 0, 2, 4).reshape(rows * columns, 3, self.side, self.side)
        if rows * columns > 1:
            whole = self.rule.values(self.rule.resized(picture, self.side, self.side))
            tiles = np.concatenate([tiles, whole[None]])
        grid = 1, rows * self.patches, columns * self.patches
        return image_item(tiles, grid, self.tokens_of(grid))

    def _canvas(self, height: int, width: int) -> Size:
        """Return rows and columns of the canvas: the least enlargement, else the least
        reduction; of equal ones the smallest area."""
        canvases = np.array(self.canvases, dtype=np.int64)
        edges = (canvases * self.side).astype(np.float32)
        scales = np.minimum(edges[:, 0] / np.float32(height), edges[:, 1] / np.float32(width))
        larger = scales[scales >= 1]
        if not len(larger):
            chosen = scales.max()
        else:
            chosen = larger.max() if self.enlarges else larger.min()
        fitting = canvases[scales == chosen]
        rows, columns = fitting[int(np.argmin(fitting[:, 0] * fitting[:, 1]))]
        return int(rows), int(columns)

    def _fitted(self, height: int, width: int, canvas: Size) -> Size:
        """Return the size of the picture on its canvas, in its ratio. transformers computes an edge
        that the canvas limits in float32, and another one in float64."""
        most_height, down = self._edge(height, canvas[0] * self.side)
        most_width, across = self._edge(width, canvas[1] * self.side)
        if np.float32(across) < np.float32(down):
            return max(1, min(_floor(height, across), most_height)), most_width
        return most_height, max(1, min(_floor(width, down), most_width))

    def _edge(self, edge: int, of_canvas: int) -> tuple[int, float | np.float32]:
        """Return the most pixels of an edge, and its scale."""
        kept = max(edge, self.side)  # a picture smaller than a tile is enlarged to one
        if self.enlarges or of_canvas < kept:
            return of_canvas, np.float32(of_canvas) / np.float32(edge)
        return kept, kept / edge


def _floor(edge: int, scale: float | np.float32) -> int:
    if isinstance(scale, np.float32):
        return int(np.float32(edge) * scale)
    return int(edge * scale)


def llama4_processor(settings: ProcessorSettings) -> Llama4Processor:
    """Build the processor of a checkpoint. Raises `ModelError`."""
    image, encoder = settings.image, settings.encoder
    side = square_side(image, "size", _SIDE)
    must_agree("size", side, whole_number(encoder, "image_size", _ENCODER_SIDE))
    patch = whole_number(encoder, "patch_size", _PATCH)
    must_agree("patch_size", whole_number(settings.whole, "patch_size", patch), patch)
    ratio = decimal(encoder, "pixel_shuffle_ratio", _SHUFFLE)
    rule = pixel_rule(image, resample=Image.Resampling.BILINEAR, mean=HALF, std=HALF, half=True)
    patches = side // patch
    return Llama4Processor(
        rule=rule,
        side=side,
        patches=patches,
        tokens=patches**2 // round(1 / ratio**2),
        canvases=_canvases(whole_number(image, "max_patches", _TILES)),
        enlarges=switch(image, "resize_to_max_canvas", False),
        marks=ImageMarks(_PICTURE, (_PICTURE, _TOKEN)),
    )


def _canvases(most: int) -> tuple[Size, ...]:
    """List all canvases of at most so many tiles, those of one ratio together, in the order of
    transformers."""
    by_ratio: dict[float, list[Size]] = {}
    for tiles in range(most, 0, -1):
        for rows in range(1, tiles + 1):
            if tiles % rows == 0:
                by_ratio.setdefault(rows / (tiles // rows), []).append((rows, tiles // rows))
    return tuple(size for sizes in by_ratio.values() for size in sizes)
