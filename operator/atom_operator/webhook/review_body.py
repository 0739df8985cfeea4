"""The bodies of reviews: read in bounded time and memory, from all connections together.

Any pod that reaches the Service may send one. A body has a few seconds, small ones have a place
each, and what is larger shares one budget; the text is parsed within bounds of values and depth,
outside the event loop if it is large. What is refused here is answered with a code by which the
API server lets the object pass.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from atom.bounded_input.bounded_json import BoundedJsonError, JsonBounds, parse_json

# Two objects, each below etcd's limit of 1.5 MiB, and room for JSON escapes.
BOUNDS = JsonBounds(most_bytes=8 << 20, most_values=1 << 17, most_depth=128)


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """Bound the bodies of one server. small_bytes: of a body that takes nothing of the budget."""

    small_bytes: int = 256 << 10
    budget_bytes: int = 24 << 20
    readers: int = 256
    seconds: float = 5.0
    threaded_bytes: int = 256 << 10  # of a body that is parsed outside the event loop
    threads: int = 2


class BodyRefusedError(Exception):
    """A body that is not read; `status` is the HTTP code."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class ReviewBodies:
    """Reads the bodies of one server."""

    def __init__(self, limits: BodyLimits | None = None) -> None:
        self._limits = limits or BodyLimits()
        self._readers = 0
        self._held_bytes = 0  # beyond small bodies
        self._threads = asyncio.Semaphore(self._limits.threads)

    @property
    def held_bytes(self) -> int:
        """Return the bytes of the budget that are in use."""
        return self._held_bytes

    @asynccontextmanager
    async def parsed(self, chunks: AsyncIterable[bytes]) -> AsyncIterator[Any]:
        """Yield the JSON of a body; its share is held until the end of the block. Raises
        BodyRefusedError."""
        limits, held = self._limits, 0
        if self._readers >= limits.readers:
            raise BodyRefusedError(503, f"{limits.readers} reviews are read already; try again")
        self._readers += 1
        try:
            body = bytearray()
            try:
                async with asyncio.timeout(limits.seconds):
                    async for chunk in chunks:
                        body += chunk
                        held = self._take(len(body), held)
            except TimeoutError:
                words = f"the body did not arrive within {limits.seconds:g} s"
                raise BodyRefusedError(408, words) from None
            yield await self._parse(bytes(body))
        finally:
            self._readers -= 1
            self._held_bytes -= held

    def _take(self, length: int, held: int) -> int:
        """Return the share of a body that has grown to `length` bytes."""
        if length > BOUNDS.most_bytes:
            raise BodyRefusedError(413, f"the body has more than {BOUNDS.most_bytes} bytes")
        more = max(0, length - self._limits.small_bytes) - held
        if self._held_bytes + more > self._limits.budget_bytes:
            raise BodyRefusedError(503, "too many large reviews at once; try again")
        self._held_bytes += more
        return held + more

    async def _parse(self, body: bytes) -> Any:
        try:
            if len(body) <= self._limits.threaded_bytes:
                return parse_json(body, BOUNDS)
            async with self._threads:
                return await asyncio.to_thread(parse_json, body, BOUNDS)
        except BoundedJsonError as error:
            raise BodyRefusedError(400, f"the body is not read: {error}") from None
