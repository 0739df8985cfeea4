"""PictureReader: clients' files to processed images, in the processes of the picture server.

The server's side of picture_server.py: starts it, sends it files from a few waiting threads, which
clients share fairly, and starts it again if it ends. Belongs to an event loop, whose other requests
go on meanwhile.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from atom.errors import ConfigError, EngineDeadError, RequestError
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
from atom.utils.fair_threads import FairThreads
from atom.utils.fork_server.owner import (
    ForkingProgram,
    ForkServer,
    ForkServerClosedError,
    ForkServerLostError,
    ForkServerStartError,
)

_THREADS = 2  # pictures at once; each may take the limit of memory
_SERVER_MODULE = "atom.images.picture_server"


@dataclass(frozen=True, slots=True)
class PictureLimits:
    """Bounds that a request sets. most_tokens: of one picture; longest_edge: in pixels, to which a
    larger one is reduced first; 0 for none."""

    most_tokens: int
    longest_edge: int = 0


class PictureReader:
    def __init__(self, setup: PictureSetup) -> None:
        """Starts nothing."""
        self._setup = setup
        self._threads = FairThreads(_THREADS, "pictures")
        self._server = ForkServer(
            ForkingProgram(
                module=_SERVER_MODULE,
                setup=setup,
                folder="atom-pictures-",
                purpose="images are not available on this server: the process that decodes them",
            )
        )

    async def read(self, client: str, file: bytes, limits: PictureLimits) -> ImageItem:
        """Decode and process a file, when it is the client's turn. Raises `ImageError`, and
        `RequestError` (503) if the server of pictures has ended."""
        return await self._threads.run(client, partial(self._read, file, limits), _ending)

    async def prepare(self) -> None:
        """Start the process, so that the first picture does not wait for it. Raises
        `ConfigError`."""
        await self._threads.run("", self._prepare, _ending)

    def close(self) -> None:
        """End the process; files that are being read are given up."""
        self._threads.close()
        self._server.close()

    # ---- on other threads ---------------------------------------------------------------

    def _prepare(self) -> None:
        with _told():
            self._server.prepare()

    def _read(self, file: bytes, limits: PictureLimits) -> ImageItem:
        order = PictureOrder(len(file), limits.most_tokens, limits.longest_edge)
        with _told():
            connection = self._server.connect()
        with connection:
            try:
                send(connection, order, file)
                reply = receive_header(connection, PictureReply)
                if reply.refused:
                    raise ImageError(reply.refused)
                pixels = np.empty(reply.shape, dtype=np.float32)
                receive_into(connection, pixels.data.cast("B"))
            except OSError as error:  # its process was ended, by the kernel or by a crash
                raise ImageError(
                    f"decoding it takes more than {self._setup.limit_cpu_seconds} s or "
                    f"{self._setup.limit_memory_bytes >> 20} MiB; send a smaller picture"
                ) from error
        return ImageItem(reply.digest, pixels, reply.grid, reply.tokens)


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Translate errors of the process into errors of a request or of the start."""
    try:
        yield
    except ForkServerStartError as error:
        raise ConfigError(str(error)) from error
    except ForkServerClosedError as error:
        raise _ending() from error
    except ForkServerLostError as error:
        raise RequestError(
            f"the process that decodes images is gone ({error}); send the request again",
            status=503,
        ) from error


def _ending() -> EngineDeadError:
    return EngineDeadError("the engine was shut down")
