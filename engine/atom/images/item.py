"""ImageItem and PlacedImage: a processed image, and its place in a prompt.

An item depends on the picture and the model's processing alone, so an encoder's output can be
cached by its digest. A placed image says which positions of an expanded prompt the encoder's output
fills. Made by `processing`; the engine reads both.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class ImageItem:
    """The processed pixels of one image.

    digest: sha256 of the pixels with their shape, 32 bytes. Items of equal digests are equal.
    pixels: in the layout of the family (its file in `processing` defines the layout).
    grid: time, height and width in patches, before patches are merged. Time is 1 for an image;
    families that cut an image into several pictures define it in their file.
    tokens: positions of a prompt that the encoder's output for this image fills.
    """

    digest: bytes
    pixels: Pixels = field(compare=False)
    grid: tuple[int, int, int] = field(compare=False)
    tokens: int = field(compare=False)


@dataclass(frozen=True, slots=True)
class PlacedImage:
    """An image in a prompt.

    offset: the first position of the expanded prompt that the encoder's output fills.
    is_image: [span], from that position to the last one that the output fills: True at positions
    that the output fills, in its order, and False at tokens between (row breaks, tile separators).
    It has `item.tokens` True values, and its first and last values are True.
    """

    item: ImageItem
    offset: int
    is_image: Mask = field(compare=False)

    @property
    def end(self) -> int:
        """Return the position after the last one that the encoder's output fills."""
        return self.offset + len(self.is_image)


def image_item(pixels: Pixels, grid: tuple[int, int, int], tokens: int) -> ImageItem:
    """Build the item of processed pixels."""
    pixels = np.ascontiguousarray(pixels, dtype=np.float32)
    named = hashlib.sha256(repr((pixels.shape, grid)).encode())
    named.update(pixels.data)
    return ImageItem(named.digest(), pixels, grid, tokens)
