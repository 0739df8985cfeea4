"""Seeded pictures of odd sizes and modes, and their files."""

from __future__ import annotations

import io
import random

import numpy as np
from PIL import Image

MODES = ("RGB", "L", "P", "CMYK", "RGBA", "LA", "1", "I;16")
_EDGES = (1, 2, 3, 7, 13, 14, 27, 28, 29, 55, 111, 224, 255, 257, 336, 400, 511, 700, 1023, 1300)


def drawn_size(draw: random.Random) -> tuple[int, int]:
    """Draw a width and height whose edges are small primes, whole patches, or next to them."""
    width = draw.choice(_EDGES) + draw.randrange(2)
    height = draw.choice(_EDGES) + draw.randrange(2)
    return width, height


def drawn_picture(draw: random.Random, mode: str = "RGB") -> Image.Image:
    """Draw a picture of noise over a gradient, with hard edges."""
    width, height = drawn_size(draw)
    noise = np.random.default_rng(draw.randrange(1 << 32))
    across = np.linspace(0, 255, width)[None, :, None]
    down = np.linspace(255, 0, height)[:, None, None]
    values = (across + down) / 2 + noise.normal(0, 40, (height, width, 4))
    values[height // 3 : height // 2, width // 3 : width // 2] = (255, 0, 0, 90)
    picture = Image.fromarray(values.clip(0, 255).astype(np.uint8), "RGBA")
    if mode == "RGBA":
        return picture
    if mode == "I;16":
        deep = noise.integers(0, 1 << 16, (height, width), dtype=np.uint16)
        return Image.fromarray(deep)
    if mode == "LA":
        return picture.convert(mode)
    return picture.convert("RGB").convert(mode)


def file_of(picture: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    """Return the picture as a file of this kind."""
    written = io.BytesIO()
    picture.save(written, kind, **options)
    return written.getvalue()
