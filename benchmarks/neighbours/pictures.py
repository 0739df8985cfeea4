"""Pictures that an attacking client sends: large, slow, broken and hostile files, each a new one.

A file is made once and ends with random bytes, which decoders ignore, so that the server knows none
of them from before.
"""

from __future__ import annotations

import base64
import io
import random
import struct
import zlib
from functools import cache
from typing import Any

from PIL import Image

_FRESH_BYTES = 8
_FRAMES = 1_000
_WIDTH, _HEIGHT = 8_000, 5_000  # 40 megapixels, the most that are read


def parts_of(kind: str, draw: random.Random) -> list[dict[str, Any]]:
    """Return the parts of a message with the pictures of a kind: one of `KINDS`."""
    media_type, files = _files(kind)
    parts = []
    for file in files:
        fresh = file + draw.randbytes(_FRESH_BYTES)
        url = f"data:{media_type};base64,{base64.b64encode(fresh).decode()}"
        parts.append({"type": "image_url", "image_url": {"url": url}})
    return parts


@cache
def _files(kind: str) -> tuple[str, list[bytes]]:
    return KINDS[kind]()


def _bombs() -> tuple[str, list[bytes]]:
    """Make a PNG whose header says 40 megapixels, and whose data unpack to zeros alone."""
    zeros = zlib.compress(bytes(1 << 26), 9)
    header = struct.pack(">IIBBBBB", _WIDTH, _HEIGHT, 16, 6, 0, 0, 0)
    chunks = (b"IHDR", header), (b"IDAT", zeros), (b"IEND", b"")
    return "image/png", [b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*each) for each in chunks)]


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _progressive() -> tuple[str, list[bytes]]:
    return "image/jpeg", [_written("JPEG", _gradient(), progressive=True, quality=60)]


def _eight() -> tuple[str, list[bytes]]:
    file = _written("PNG", Image.new("RGB", (_WIDTH, _HEIGHT), "navy"), compress_level=1)
    return "image/png", [file] * 8


def _animations() -> tuple[str, list[bytes]]:
    """Make a GIF of thousands of frames, of which the first alone is to be decoded."""
    size = (640, 480)
    single = _written("GIF", Image.linear_gradient("L").resize(size).convert("P"))
    at = single.index(b"," + struct.pack("<HHHH", 0, 0, *size))
    return "image/gif", [single[:at] + single[at:-1] * _FRAMES + single[-1:]] * 2


def _broken() -> tuple[str, list[bytes]]:
    whole = _written("WEBP", _gradient().resize((3_000, 2_000)), quality=80)
    return "image/webp", [whole[: len(whole) // 2]] * 4


def _gradient() -> Image.Image:
    return Image.radial_gradient("L").convert("RGB").resize((_WIDTH, _HEIGHT))


def _written(kind: str, picture: Image.Image, **options: Any) -> bytes:
    written = io.BytesIO()
    picture.save(written, kind, **options)
    return written.getvalue()


KINDS = {
    "bombs": _bombs,
    "progressive": _progressive,
    "eight-40mp": _eight,
    "animations": _animations,
    "broken": _broken,
}
