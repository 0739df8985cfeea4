"""Resize a picture and turn its bytes into the numbers that an encoder reads.

A byte of a channel has 256 values, so rescaling and normalising is one look-up. The table is
computed as transformers computes each pixel: the scale in float64, mean and deviation in float32.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from PIL import Image

from atom.errors import ModelError
from atom.images.item import Pixels
from atom.images.processing.settings import (
    PREPROCESSOR_FILE,
    Fields,
    decimal,
    of_channels,
    step_is_on,
    switch,
)

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
HALF = (0.5, 0.5, 0.5)


@dataclass(frozen=True, slots=True)
class PixelRule:
    """The resampling and scaling of pixels. table: [256, 3], a channel's value for each byte."""

    resample: Image.Resampling
    table: Pixels

    def resized(self, picture: Image.Image, height: int, width: int) -> Image.Image:
        """Return an RGB picture in this size, the same one if it has this size."""
        if picture.size == (width, height):
            return picture
        return picture.resize((width, height), self.resample)

    def values(self, picture: Image.Image) -> Pixels:
        """Return an RGB picture's values, [3, height, width]."""
        bytes_of = np.asarray(picture)  # [height, width, 3]
        found = np.empty((3, *bytes_of.shape[:2]), dtype=np.float32)
        for channel in range(3):
            np.take(self.table[:, channel], bytes_of[..., channel], out=found[channel])
        return found


def pixel_rule(
    fields: Fields,
    *,
    resample: Image.Resampling,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    normalises: bool = True,
    half: bool = False,
) -> PixelRule:
    """Read the fields of an image processor. The other arguments are the defaults of its class;
    half: it computes in bfloat16. Raises `ModelError`."""
    stored = _to_bfloat16 if half else _as_it_is
    if not step_is_on(fields, "do_resize", True) or switch(fields, "do_center_crop", False):
        raise ModelError(
            f"{PREPROCESSOR_FILE}: do_resize must be true and do_center_crop false; start the "
            "server with --language-model-only to serve the text part alone"
        )
    table = np.repeat(np.arange(256, dtype=np.uint8)[:, None], 3, axis=1).astype(np.float32)
    if step_is_on(fields, "do_rescale", True):
        factor = decimal(fields, "rescale_factor", 1 / 255)
        table = stored((table.astype(np.float64) * factor).astype(np.float32))
    if step_is_on(fields, "do_normalize", normalises):
        deviation = np.array(of_channels(fields, "image_std", std), dtype=np.float32)
        if not deviation.all():
            raise ModelError(f"{PREPROCESSOR_FILE}: image_std must not be 0")
        shifted = table - np.array(of_channels(fields, "image_mean", mean), np.float32)
        table = stored(stored(shifted) / deviation)
    return PixelRule(_filter(fields, resample), table.astype(np.float32))


def _filter(fields: Fields, default: Image.Resampling) -> Image.Resampling:
    if fields.get("resample") in (None, 0):
        return default if fields.get("resample") is None else Image.Resampling.NEAREST
    number = fields["resample"]
    try:
        if not isinstance(number, int) or isinstance(number, bool):
            raise ValueError("transformers knows filters by their whole numbers")
        return Image.Resampling(number)
    except ValueError:
        raise ModelError(
            f"{PREPROCESSOR_FILE}: resample must be a filter of Pillow (0 to 5), and is {number!r}"
        ) from None


def _as_it_is(values: Pixels) -> Pixels:
    return values


def _to_bfloat16(values: Pixels) -> Pixels:
    """Round to bfloat16, ties to even."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    kept = bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))
    return (kept & np.uint32(0xFFFF0000)).view(np.float32)
