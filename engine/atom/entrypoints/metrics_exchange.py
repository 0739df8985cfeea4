"""The numbers behind /metrics, and how several HTTP processes on one port combine theirs.

A scrape reaches any of the processes, and its answer must not depend on which: each one listens on
a Unix socket in the engine's private folder and answers a connection with its counts, and the
scraped one asks all others at that moment. Cached copies would make counters go backwards from one
scrape to the next; a process that ends leaves its whole count in a file.

The ranks' totals are never behind the requests': each process receives them with the very tokens
that it counts, so the newest message of a rank includes everything that any process has counted.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from atom.client_figures import ClientCounts, merge_clients
from atom.errors import RequestError
from atom.metrics import Histogram, RequestMetrics, merge_metrics
from atom.model_engine.wire.engine_protocol import RankStats
from atom.model_engine.wire.rank_answers import keep_newest

logger = logging.getLogger(__name__)

_ANSWER_SECONDS = 2.0
_MOST_BYTES = 4 * 2**20


class ServerNumbers(msgspec.Struct, frozen=True):
    """Counts of one HTTP process, in all and by client, and the ranks' newest numbers that it has.
    images: figures of `ImageMemory`; batch_requests: of stored batches, by outcome."""

    requests: RequestMetrics
    stats_by_rank: dict[int, RankStats]
    clients: dict[str, ClientCounts] = {}
    images: dict[str, int] = {}
    batch_requests: dict[str, int] = {}


_ENCODER = msgspec.msgpack.Encoder(
    enc_hook=lambda histogram: [histogram.bounds, histogram.counts, histogram.total]
)
_DECODER = msgspec.msgpack.Decoder(ServerNumbers, dec_hook=lambda kind, parts: Histogram.of(*parts))


def merge_numbers(parts: Sequence[ServerNumbers]) -> ServerNumbers:
    """Merge numbers: requests are added up; each rank is the same for all, so its newest report
    counts."""
    newest: dict[int, RankStats] = {}
    for part in parts:
        keep_newest(newest, part.stats_by_rank.values())
    return ServerNumbers(
        merge_metrics([part.requests for part in parts]),
        newest,
        merge_clients(part.clients for part in parts),
        dict(sum((Counter(part.images) for part in parts), Counter())),
        dict(sum((Counter(part.batch_requests) for part in parts), Counter())),
    )


class MetricsExchange:
    """Exchange one process's numbers with the others. Belongs to the running loop."""

    def __init__(self, own: Path, others: Sequence[Path], numbers: Callable[[], ServerNumbers]):
        """own, others: socket files. numbers: returns this process's counts so far."""
        self._own = own
        self._others = list(others)
        self._numbers = numbers
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Answer the others from here on."""
        self._server = await asyncio.start_unix_server(self._answer, self._own)

    def stop(self) -> None:
        """Save the counts for the other processes; nothing is counted after this."""
        if self._server is None:
            return
        try:
            left = msgspec.structs.replace(self._numbers(), images={})  # none is held any more
            _last_words(self._own).write_bytes(_ENCODER.encode(left))
        except OSError as error:
            logger.warning("the numbers of this process could not be left: %s", error)
        self._server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            writer.write(_ENCODER.encode(self._numbers()))
            await writer.drain()
        except ConnectionError:  # the process that asked has left
            pass
        finally:
            writer.close()

    async def total(self) -> ServerNumbers:
        """Sum the numbers of all processes. Raises `RequestError` (503) when one of them does not
        answer: a sum without it would not be true."""
        others = await asyncio.gather(*map(_numbers_of, self._others))
        return merge_numbers([self._numbers(), *others])


async def _numbers_of(path: Path) -> ServerNumbers:
    """Ask the process that listens there for its numbers, or read the file that it left at its
    end."""
    try:
        return _DECODER.decode(await _told_by(path) or _last_words(path).read_bytes())
    except (OSError, TimeoutError, ValueError) as error:
        raise _unknown(error) from error


async def _told_by(path: Path) -> bytes:
    """Return another process's numbers; empty if it no longer listens."""
    async with asyncio.timeout(_ANSWER_SECONDS):
        try:
            reader, writer = await asyncio.open_unix_connection(path, limit=_MOST_BYTES)
            try:
                return await reader.read(-1)
            finally:
                writer.close()
        except (ConnectionError, FileNotFoundError):
            return b""


def _last_words(socket: Path) -> Path:
    return socket.with_name(f"{socket.name}-last")


def _unknown(error: Exception) -> RequestError:
    return RequestError(
        f"another process of this server did not tell its numbers ({type(error).__name__}); try "
        f"again soon",
        status=503,
    )
