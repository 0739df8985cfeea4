"""RequestImage: an image of a prompt as it travels to the engine core.

The pixels are those that the family's processing made of the picture, packed. Torch-free.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from atom.images.item import PlacedImage


class RequestImage(msgspec.Struct, frozen=True):
    """An image of a prompt. digest: 32 bytes, of pixels, shape and grid; offset: the position of
    the prompt's first token that it fills; filled: a byte for each token from there to the last,
    1 if the image fills it; grid: time, height and width in patches; shape: of the pixels, which
    are little-endian float32. They are a view of the decoded or received bytes: megabytes, which
    nothing copies on the way."""

    digest: bytes
    offset: int
    filled: bytes
    grid: tuple[int, int, int]
    shape: tuple[int, ...]
    pixels: memoryview

    @classmethod
    def of(cls, placed: PlacedImage) -> RequestImage:
        """Pack an image."""
        item = placed.item
        return cls(
            digest=item.digest,
            offset=placed.offset,
            filled=np.ascontiguousarray(placed.is_image, dtype=np.uint8).tobytes(),
            grid=item.grid,
            shape=item.pixels.shape,
            pixels=np.ascontiguousarray(item.pixels, dtype="<f4").data.cast("B"),
        )

    @property
    def end(self) -> int:
        """Return the position after the last token that it fills."""
        return self.offset + len(self.filled)

    @property
    def num_tokens(self) -> int:
        return self.filled.count(1)


def pixel_bytes(images: Sequence[RequestImage]) -> int:
    """Return the bytes of the pixels of images."""
    return sum(len(image.pixels) for image in images)


def image_bytes(images: Sequence[RequestImage]) -> int:
    """Return the bytes of images on the wire, but for their few numbers."""
    return pixel_bytes(images) + sum(len(image.filled) for image in images)
