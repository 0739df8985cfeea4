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


def long_animation(kind: str, count: int) -> bytes:
    """Return an animation of a red frame and `count` blue ones of 40 by 30 pixels."""
    return {"GIF": _long_gif, "PNG": _long_png, "WEBP": _long_webp}[kind](count)


_SIZE = (40, 30)


def _long_gif(count: int) -> bytes:
    frames = []
    for colour in (0, 1):
        file = file_of(Image.new("P", _SIZE, colour), "GIF", optimize=False)
        frames.append(file[file.index(b"," + struct.pack("<HHHH", 0, 0, *_SIZE)) : -1])
    head = struct.pack("<6sHHBBB", b"GIF89a", *_SIZE, 0x80, 0, 0)
    return head + b"".join(_COLOURS) + frames[0] + frames[1] * count + b";"


def _long_png(count: int) -> bytes:
    pixels = [zlib.compress((b"\0" + colour * _SIZE[0]) * _SIZE[1]) for colour in _COLOURS]

    def control(number: int) -> bytes:
        return chunk(b"fcTL", struct.pack(">IIIIIHHBB", number, *_SIZE, 0, 0, 1, 25, 0, 0))

    found = [_SIGNATURE, chunk(b"IHDR", struct.pack(">IIBBBBB", *_SIZE, 8, 2, 0, 0, 0))]
    found += [chunk(b"acTL", struct.pack(">II", count + 1, 0)), control(0)]
    found.append(chunk(b"IDAT", pixels[0]))
    for at in range(count):
        number = 2 * at + 1
        found += [control(number), chunk(b"fdAT", struct.pack(">I", number + 1) + pixels[1])]
    return b"".join([*found, chunk(b"IEND", b"")])


_COLOURS = (b"\xff\0\0", b"\0\0\xff")


def _long_webp(count: int) -> bytes:
    def part(kind: bytes, data: bytes) -> bytes:
        return kind + struct.pack("<I", len(data)) + data + bytes(len(data) % 2)

    sides = b"".join((side - 1).to_bytes(3, "little") for side in _SIZE)
    frames = []
    for colour in ("red", "blue"):
        file = file_of(Image.new("RGB", _SIZE, colour), "WEBP", lossless=True)
        frames.append(
            part(b"ANMF", bytes(6) + sides + (40).to_bytes(3, "little") + b"\0" + file[12:])
        )
    parts = part(b"VP8X", b"\x02\0\0\0" + sides) + part(b"ANIM", bytes(6))
    parts += frames[0] + frames[1] * count
    return b"RIFF" + struct.pack("<I", 4 + len(parts)) + b"WEBP" + parts


def crumbled() -> Iterator[tuple[str, bytes]]:
    """Yield files of a few megabytes in hundreds of thousands of tiny parts, with their names."""
    picture = Image.new("RGB", (8, 8))
    gif, jpeg, whole = (file_of(picture, kind) for kind in ("GIF", "JPEG", "PNG"))
    at = 13 + 3 * 2 ** ((gif[10] & 7) + 1)
    yield "gif of comments", gif[:at] + b"!\xfe\x01x\0" * 300_000 + gif[at:]
    yield "gif of a long comment", gif[:at] + b"!\xfe" + b"\x01x" * 600_000 + b"\0" + gif[at:]
    block = b"\xff" + bytes(255)
    yield "gif of a large comment", gif[:at] + b"!\xfe" + block * 60_000 + b"\0" + gif[at:]
    exif = b"\xff\xe1" + struct.pack(">H", 9) + b"Exif\0\0a"
    yield "jpeg of exif", jpeg[:2] + exif * 200_000 + jpeg[2:]
    yield "png of chunks", whole[:33] + chunk(b"teSt", b"") * 200_000 + whole[33:]
    pixels = zlib.compress(bytes(4 * 3 * 300_000), 0)
    data = b"".join(chunk(b"IDAT", pixels[at : at + 1]) for at in range(200_000))
    yield "png of single bytes", png(300_000, 4, b"").replace(chunk(b"IDAT", b""), data)
