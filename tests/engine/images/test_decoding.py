"""Clients' files become upright RGB pictures, or are refused by their reason."""

from __future__ import annotations

import io
import random

import numpy as np
import pytest
from PIL import Image, ImageOps

from atom.images.decoding import decoded, open_picture, upright_size
from atom.images.errors import ImageError
from tests.support.hostile_pictures import animation, others
from tests.support.pictures import MODES, drawn_picture, file_of


def _read(data: bytes) -> Image.Image:
    picture = open_picture(data)
    size = upright_size(picture)
    found = decoded(picture)
    assert (found.height, found.width) == size
    assert found.mode == "RGB"
    return found


def _on_white(picture: Image.Image) -> np.ndarray:
    """Compute a picture on white in floats, a pixel at a time."""
    rgba = np.asarray(picture.convert("RGBA"), dtype=np.float64)
    share = rgba[..., 3:] / 255
    return rgba[..., :3] * share + 255 * (1 - share)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("mode", MODES)
def test_every_mode_becomes_rgb_on_white(mode: str, seed: int) -> None:
    picture = drawn_picture(random.Random(seed), mode)
    if mode in ("CMYK",):
        data = file_of(picture, "JPEG", quality=100, subsampling=0)
        found, expected = _read(data), np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    elif mode == "I;16":
        found = _read(file_of(picture))
        expected = np.asarray(picture, dtype=np.float64)[..., None] / 256
    else:
        found, expected = _read(file_of(picture)), _on_white(picture)
    assert np.abs(np.asarray(found, dtype=np.float64) - expected).max() <= 1.01


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
@pytest.mark.parametrize("orientation", range(9))
def test_the_orientation_of_exif_is_applied(kind: str, orientation: int) -> None:
    corner = Image.new("RGB", (40, 24), "white")
    corner.paste((200, 0, 0), (0, 0, 16, 8))
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = file_of(corner, kind, exif=exif.tobytes(), quality=95)
    expected = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")
    found = _read(data)
    assert found.size == expected.size
    assert np.array_equal(np.asarray(found), np.asarray(expected))


def test_damaged_exif_counts_as_none() -> None:
    data = bytearray(file_of(Image.new("RGB", (9, 5)), "JPEG", exif=b"Exif\0\0" + b"\xff" * 40))
    assert _read(bytes(data)).size == (9, 5)


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_an_animation_counts_as_its_first_frame(kind: str) -> None:
    red = np.asarray(_read(animation(kind)))[5, 10]
    assert red[0] > 240
    assert red[1:].max() < 15


def test_a_transparent_colour_of_a_palette_or_grey_is_white() -> None:
    for mode in ("P", "L", "I;16"):
        picture = Image.new(mode, (6, 6), 0)
        assert np.asarray(_read(file_of(picture, transparency=0))).min() == 255


@pytest.mark.parametrize(("name", "data"), list(others()), ids=lambda each: str(each)[:20])
def test_files_of_other_kinds_are_refused(name: str, data: bytes) -> None:
    with pytest.raises(ImageError, match=r"send a PNG, JPEG, WebP or GIF"):
        open_picture(data)


@pytest.mark.parametrize(
    ("name", "words"),
    [("svg", "an SVG drawing"), ("pdf", "a PDF"), ("tiff", "a TIFF"), ("heic", "a HEIC")],
)
def test_files_of_known_kinds_are_named(name: str, words: str) -> None:
    with pytest.raises(ImageError, match=words):
        open_picture(dict(others())[name])
