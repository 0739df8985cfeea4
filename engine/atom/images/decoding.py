"""Decode a client's file as an upright RGB picture, or say why not.

Every check that the header allows comes before a pixel is decoded: the kind of file, its number of
pixels and of parts, and of a progressive JPEG its scans, each of which costs a pass over all
pixels. Of an animation, nothing after the first frame is read, except by WebP's reader, which wants
the whole file and decodes no other frame. Pillow runs on bytes of clients here, so this runs in the
processes of picture_server.py alone.
"""

from __future__ import annotations

import re
import warnings

import numpy as np
from PIL import Image

from atom.images.counted_file import CountedFile
from atom.images.errors import ImageError

MOST_PIXELS = 40_000_000
KINDS = ("PNG", "JPEG", "WEBP", "GIF")
_MOST_SCANNED_PIXELS = 500_000_000  # of a progressive JPEG: its pixels times its scans
_SCAN = re.compile(rb"\xff\xda")
_ORIENTATION = 0x0112
_SEND = "send a PNG, JPEG, WebP or GIF"
# How files begin that clients send by mistake.
_OTHER_KINDS = (
    (re.compile(rb"%PDF"), "a PDF document"),
    (re.compile(rb"BM"), "a BMP picture"),
    (re.compile(rb"II\*\0|MM\0\*"), "a TIFF picture"),
    (re.compile(rb"....ftypavi[fs]", re.DOTALL), "an AVIF picture"),
    (re.compile(rb"....ftyp(hei[cx]|mif1|msf1)", re.DOTALL), "a HEIC picture"),
    (re.compile(rb"....ftyp", re.DOTALL), "a video"),
)
_HEAD_BYTES = 4096


def open_picture(data: bytes) -> Image.Image:
    """Read the header of a file, and check it. Raises `ImageError`."""
    if not data:
        raise ImageError(f"the file is empty; {_SEND}")
    Image.MAX_IMAGE_PIXELS = None  # checked below, with its own words
    try:
        picture = Image.open(file := CountedFile(data), formats=KINDS)
        file.end_header()
    except (MemoryError, ImageError):
        raise
    except Exception as error:  # Pillow's readers raise errors of every kind for damaged files
        raise ImageError(f"{_kind_of(data)}; {_SEND}") from error
    width, height = picture.size
    if width < 1 or height < 1:
        raise ImageError(f"the picture is {width} by {height} pixels; {_SEND}")
    if width * height > MOST_PIXELS:
        raise ImageError(
            f"the picture has {width} by {height} pixels, more than "
            f"{MOST_PIXELS // 1_000_000} megapixels; send a smaller one"
        )
    if picture.format == "JPEG" and picture.info.get("progressive"):
        scans = sum(1 for _ in _SCAN.finditer(data))
        if scans * width * height > _MOST_SCANNED_PIXELS:
            raise ImageError(
                f"the picture is a progressive JPEG of {scans} scans, which takes too long to "
                "decode; save it again without progressive scans"
            )
    return picture


def upright_size(picture: Image.Image) -> tuple[int, int]:
    """Return height and width of an opened picture after its orientation is applied."""
    width, height = picture.size
    return (width, height) if _orientation(picture) >= 5 else (height, width)


def decoded(picture: Image.Image) -> Image.Image:
    """Decode an opened picture: its first frame, upright, with transparent parts on white, in RGB.
    Raises `ImageError`."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of damaged metadata, which is not used
            turned = _orientation(picture)
            picture.load()
            return _turned(_rgb(picture), turned)
    except (MemoryError, ImageError):
        raise
    except Exception as error:  # as above
        raise ImageError(
            f"the {picture.format} file is damaged or incomplete ({_reason(error)}); send it again"
        ) from error


def _kind_of(data: bytes) -> str:
    head = data[:_HEAD_BYTES]
    if head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<"):
        return f"the file is {'an SVG drawing' if b'<svg' in head.lower() else 'a page of markup'}"
    for begins, name in _OTHER_KINDS:
        if begins.match(head):
            return f"the file is {name}"
    return "the file is damaged, or no picture of a known kind"


def _orientation(picture: Image.Image) -> int:
    """Return the orientation of EXIF, 1 to 8; 1 if it is absent or damaged."""
    try:
        found = picture.getexif().get(_ORIENTATION, 1)
    except Exception:  # damaged metadata
        return 1
    return found if isinstance(found, int) and 1 <= found <= 8 else 1


_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def _turned(picture: Image.Image, orientation: int) -> Image.Image:
    turn = _TURNS.get(orientation)
    return picture if turn is None else picture.transpose(turn)


def _rgb(picture: Image.Image) -> Image.Image:
    if picture.mode.startswith("I"):
        return _of_16_bits(picture)
    if picture.has_transparency_data:
        alpha = picture.convert("RGBA")
        white = Image.new("RGBA", alpha.size, "white")
        return Image.alpha_composite(white, alpha).convert("RGB")
    return picture if picture.mode == "RGB" else picture.convert("RGB")


def _of_16_bits(picture: Image.Image) -> Image.Image:
    """Keep the upper 8 bits of a grey picture, as Pillow does of coloured ones."""
    values = np.asarray(picture)
    shown = (values >> 8).clip(0, 255).astype(np.uint8)
    transparent = picture.info.get("transparency")
    if isinstance(transparent, int):
        shown[values == transparent] = 255
    return Image.fromarray(shown).convert("RGB")


def _reason(error: Exception) -> str:
    """Return the words of an error on one line, without what may quote the file."""
    return str(error).split("\n", 1)[0][:100] or type(error).__name__
