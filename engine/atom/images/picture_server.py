"""The picture server: `python -m atom.images.picture_server SOCKET`.

Files come from clients, and libraries that decode pictures have had holes. So each file is decoded
and processed in a process forked from this one, where they are loaded, with limits of memory,
processor time and files that the kernel enforces. Whatever happens there, the process ends, and the
server and the engine never notice. Started by PictureReader; ends when its standard input closes.
Loads no torch.
"""

from __future__ import annotations

import os
import resource
import socket
import sys
from functools import partial
from pathlib import Path

from PIL import Image

from atom.errors import AtomError
from atom.images.decoding import decoded, open_picture, upright_size
from atom.images.errors import ImageError
from atom.images.item import ImageItem
from atom.images.picture_messages import (
    PictureOrder,
    PictureReply,
    PictureSetup,
    receive_header,
    receive_into,
    send,
)
from atom.images.processing.families import image_processor
from atom.images.processing.processor import ImageProcessor
from atom.utils.fork_server.process import limit_memory, limit_time, read_setup, refuse, serve

_NICENESS = 5  # the engine comes first, and a picture's answer soon


def main() -> int:
    setup = read_setup(PictureSetup)
    try:
        processor = image_processor(Path(setup.folder), setup.config)
        if processor is None:
            raise ImageError("the model reads no images")
    except AtomError as error:
        return refuse(str(error))
    Image.init()  # so that a child loads no file
    return serve(partial(_answer, processor=processor, setup=setup))


def _answer(connection: socket.socket, processor: ImageProcessor, setup: PictureSetup) -> None:
    order = receive_header(connection, PictureOrder)
    data = bytearray(order.num_bytes)
    receive_into(connection, memoryview(data))
    os.nice(_NICENESS)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    limit_memory(setup.limit_memory_bytes)
    limit_time(setup.limit_cpu_seconds, setup.limit_wall_seconds)
    try:
        item = _process(processor, bytes(data), order)
    except ImageError as error:
        send(connection, PictureReply(refused=str(error)), b"")
    else:
        reply = PictureReply(
            digest=item.digest, grid=item.grid, tokens=item.tokens, shape=item.pixels.shape
        )
        send(connection, reply, item.pixels.data.cast("B"))


def _process(processor: ImageProcessor, data: bytes, order: PictureOrder) -> ImageItem:
    """Check by the header, then decode and process. Raises `ImageError`."""
    picture = open_picture(data)
    size = _reduced(*upright_size(picture), order.longest_edge)
    tokens = processor.tokens_of(processor.plan(*size))
    if tokens > order.most_tokens:
        raise ImageError(
            f"the picture has {tokens} tokens, more than the {order.most_tokens} that one may have "
            'here; send a smaller one, or detail "low"'
        )
    upright = decoded(picture)
    height, width = size
    if upright.size != (width, height):
        upright = upright.resize((width, height), Image.Resampling.BICUBIC)
    return processor.process(upright)


def _reduced(height: int, width: int, longest_edge: int) -> tuple[int, int]:
    ratio = max(height, width) / longest_edge if longest_edge else 1.0
    if ratio <= 1:
        return height, width
    return max(1, round(height / ratio)), max(1, round(width / ratio))


if __name__ == "__main__":
    sys.exit(main())
