"""Files that a client may send as a picture to harm the server, generated from a seed."""

from __future__ import annotations

import io
import random
import struct
import zlib
from collections.abc import Iterator

from PIL import Image

from tests.support.pictures import drawn_picture, file_of

_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def chunk(kind: bytes, data: bytes) -> bytes:
    """Return a chunk of a PNG."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, data: bytes, *, depth: int = 8, colour: int = 2) -> bytes:
    """Return a PNG of any header and compressed data."""
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    return _SIGNATURE + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def bombs() -> Iterator[tuple[str, bytes]]:
    """Yield small files that would take much memory or time, with their names."""
    zeros = zlib.compress(bytes(1 << 24), 9)
    yield "png of 2.5 gigapixels", png(50_000, 50_000, zeros)
    yield "png of the largest edges", png((1 << 31) - 1, (1 << 31) - 1, zeros)
    yield "png just above the limit", png(40_000_001, 1, zeros)
    yield "png of no pixels", png(0, 10, zeros)
    yield "png of a long edge without data", png(6000, 6000, zlib.compress(b""))
    text = chunk(b"zTXt", b"note\0\0" + zlib.compress(bytes(1 << 28), 9))
    whole = file_of(Image.new("RGB", (8, 8)))
    yield "png with a text of 256 MiB", whole[:33] + text + whole[33:]
    gif = bytearray(file_of(Image.new("P", (8, 8)), "GIF"))
    gif[6:10] = b"\xff\xff\xff\xff"
    yield "gif of four gigapixels", bytes(gif)
    webp = file_of(Image.new("RGB", (16383, 2500)), "WEBP", quality=1)
    yield "webp just above the limit", webp
    yield "jpeg of a thousand scans", _scans(1000)
    jpeg = bytearray(file_of(Image.new("RGB", (64, 64)), "JPEG"))
    at = jpeg.index(b"\xff\xc0")
    jpeg[at + 5 : at + 9] = b"\xff\xff\xff\xff"
    yield "jpeg of four gigapixels", bytes(jpeg)


def _scans(count: int) -> bytes:
    """Return a progressive JPEG that repeats its last scan."""
    whole = file_of(Image.new("RGB", (3000, 3000)), "JPEG", progressive=True)
    last = whole.rindex(b"\xff\xda")
    return whole[:last] + whole[last:-2] * count + whole[-2:]


def others() -> Iterator[tuple[str, bytes]]:
    """Yield files of other kinds, with their names."""
    yield "empty", b""
    yield "text", b"hello"
    yield "svg", b'<?xml version="1.0"?>\n<svg xmlns="http://www.w3.org/2000/svg"><image/></svg>'
    yield "svg after comments", b"<!---->" * 500 + b"<svg/>"
    yield "pdf", b"%PDF-1.7\n1 0 obj"
    yield "page", b"<!DOCTYPE html><html></html>"
    yield "zip", b"PK\x03\x04" + bytes(60)
    yield "video", b"\0\0\0\x20ftypisom" + bytes(60)
    yield "avif", b"\0\0\0\x20ftypavif" + bytes(60)
    yield "heic", b"\0\0\0\x20ftypheic" + bytes(60)
    picture = Image.new("RGB", (8, 8))
    for kind in ("BMP", "TIFF", "PPM", "ICO", "TGA", "PCX", "EPS"):
        yield kind.lower(), file_of(picture, kind)


def damaged(draw: random.Random) -> tuple[str, bytes]:
    """Draw a picture's file that is cut, changed in some bytes, or with a part twice."""
    kind = draw.choice(("PNG", "JPEG", "WEBP", "GIF"))
    whole = bytearray(file_of(drawn_picture(draw).resize((40, 30)), kind))
    fault = draw.choice(("cut", "changed", "doubled", "zeroed"))
    at = draw.randrange(len(whole))
    if fault == "cut":
        whole = whole[:at]
    elif fault == "changed":
        for _ in range(draw.randrange(1, 20)):
            whole[draw.randrange(len(whole))] = draw.randrange(256)
    elif fault == "doubled":
        whole[at:at] = whole[: draw.randrange(len(whole))]
    else:
        whole[at : at + 64] = bytes(len(whole[at : at + 64]))
    return f"{kind} {fault}", bytes(whole)


def animation(kind: str) -> bytes:
    """Return three frames: red, green and blue."""
    frames = [Image.new("RGB", (20, 10), colour) for colour in ("red", "green", "blue")]
    written = io.BytesIO()
    frames[0].save(written, kind, save_all=True, append_images=frames[1:], duration=50)
    return written.getvalue()
