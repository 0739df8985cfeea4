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
import select
import signal
import socket
import sys
from pathlib import Path

import msgspec
from PIL import Image

from atom.errors import AtomError
from atom.images.decoding import decoded, open_picture, upright_size
from atom.images.errors import ImageError
from atom.images.item import ImageItem
from atom.images.picture_messages import (
    PictureOrder,
    PictureReply,
    PictureSetup,
    ServerReady,
    receive_header,
    receive_into,
    send,
)
from atom.images.processing.families import image_processor
from atom.images.processing.processor import ImageProcessor

_BACKLOG = 64
_NICENESS = 5  # the engine comes first, and a picture's answer soon


def main() -> int:
    setup = msgspec.json.decode(sys.stdin.buffer.readline(), type=PictureSetup)
    try:
        processor = image_processor(Path(setup.folder), setup.config)
        if processor is None:
            raise ImageError("the model reads no images")
    except AtomError as error:
        _say(ServerReady(error=str(error)))
        return 1
    Image.init()  # so that a child loads no file
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(sys.argv[1])
        listener.listen(_BACKLOG)
        _say(ServerReady())
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel buries them
        _serve(listener, processor, setup)
    return 0


def _say(ready: ServerReady) -> None:
    with os.fdopen(os.dup(1), "wb") as out:
        out.write(msgspec.msgpack.encode(ready))
    # Closes the pipe: its reader sees the end. Nothing else may be written there.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _serve(listener: socket.socket, processor: ImageProcessor, setup: PictureSetup) -> None:
    """Fork a child for each connection, until standard input ends."""
    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [])
        if sys.stdin in ready:
            return
        connection, _ = listener.accept()
        with connection:
            if os.fork() == 0:
                listener.close()  # else clients of a server that has died wait for this child
                _answer_and_exit(connection, processor, setup)


def _answer_and_exit(
    connection: socket.socket, processor: ImageProcessor, setup: PictureSetup
) -> None:
    """Run the child: never returns. Dying without an answer is an answer too."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # libraries' warnings quote the client
        order = receive_header(connection, PictureOrder)
        data = bytearray(order.num_bytes)
        receive_into(connection, memoryview(data))
        _limit(setup)
        try:
            item = _process(processor, bytes(data), order)
        except ImageError as error:
            send(connection, PictureReply(refused=str(error)), b"")
        else:
            reply = PictureReply(
                digest=item.digest, grid=item.grid, tokens=item.tokens, shape=item.pixels.shape
            )
            send(connection, reply, item.pixels.data.cast("B"))
    finally:
        os._exit(0)


def _limit(setup: PictureSetup) -> None:
    os.nice(_NICENESS)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + setup.limit_memory_bytes
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    cpu = setup.limit_cpu_seconds
    resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, setup.limit_wall_seconds)


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
