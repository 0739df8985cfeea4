"""The numbers behind /metrics, and how several HTTP processes on one port put theirs together.

A scrape reaches any of the processes, and its answer must not depend on which: each one listens on
a Unix socket in the engine's private folder and answers a connection with what it has counted, and
the one that is scraped asks all others at that moment. Copies kept from earlier would make counters
go backwards from one scrape to the next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from atom.errors import RequestError
from atom.metrics import Histogram, RequestMetrics, merge_metrics
from atom.model_engine.wire.engine_protocol import StatsBody

_ANSWER_SECONDS = 2.0
_MOST_BYTES = 4 * 2**20


class ServerNumbers(msgspec.Struct, frozen=True):
    """What one HTTP process has counted, and the ranks' newest words that it has."""

    requests: RequestMetrics
    stats_by_rank: dict[int, StatsBody]


_ENCODER = msgspec.msgpack.Encoder(
    enc_hook=lambda histogram: [histogram.bounds, histogram.counts, histogram.total]
)
_DECODER = msgspec.msgpack.Decoder(ServerNumbers, dec_hook=lambda kind, parts: Histogram.of(*parts))


def merge_numbers(parts: Sequence[ServerNumbers]) -> ServerNumbers:
    """Requests are added up; each rank is the same for all, so its newest word counts."""
    newest: dict[int, StatsBody] = {}
    for part in parts:
        for rank, stats in part.stats_by_rank.items():
            if rank not in newest or stats.steps_total > newest[rank].steps_total:
                newest[rank] = stats
    return ServerNumbers(merge_metrics([part.requests for part in parts]), newest)


class MetricsExchange:
    """One process' part of the exchange. Belongs to the running loop."""

    def __init__(self, own: Path, others: Sequence[Path], numbers: Callable[[], ServerNumbers]):
        """own, others: socket files. numbers: what this process has counted so far."""
        self._own = own
        self._others = list(others)
        self._numbers = numbers
        self._last: dict[Path, ServerNumbers] = {}
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Answer the others from here on."""
        self._server = await asyncio.start_unix_server(self._answer, self._own)

    def stop(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            writer.write(_ENCODER.encode(self._numbers()))
            await writer.drain()
        except ConnectionError:  # the one who asked has left
            pass
        finally:
            writer.close()

    async def total(self) -> ServerNumbers:
        """Of all processes. Raises `RequestError` (503) when one of them does not answer: a sum
        without it would not be true."""
        others = await asyncio.gather(*map(self._ask, self._others))
        return merge_numbers([self._numbers(), *others])

    async def _ask(self, path: Path) -> ServerNumbers:
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                reader, writer = await asyncio.open_unix_connection(path, limit=_MOST_BYTES)
                try:
                    data = await reader.read(-1)
                finally:
                    writer.close()
            self._last[path] = _DECODER.decode(data)
        except (ConnectionError, FileNotFoundError) as error:
            if path not in self._last:
                raise _unknown(error) from error
            # It has drained and ended before us: what it last said is its whole count.
        except (TimeoutError, ValueError) as error:
            raise _unknown(error) from error
        return self._last[path]


def _unknown(error: Exception) -> RequestError:
    return RequestError(
        f"another process of this server did not tell its numbers ({type(error).__name__}); try "
        f"again soon",
        status=503,
    )
