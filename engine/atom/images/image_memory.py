"""ImageMemory: a bound on the decoded images of all open requests of one HTTP process.

A picture of a few hundred kilobytes is decoded to tens of megabytes, which its request holds in the
server until it is sent, and in the engine until its end: a preempted request encodes its images
again. A request reserves memory for all of its images before the first is decoded, and otherwise
waits for its turn: the next is of the client that holds the least. So no two requests wait for each
other in the middle of their images. Knows no pictures and no HTTP; belongs to an event loop.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from atom.errors import EngineDeadError, RequestError

TOO_MANY = "images_too_large"


@dataclass(slots=True, eq=False)
class _Waiter:
    """A request that waits for memory. copies: of its images, one for each answer."""

    group: str
    size_bytes: int
    copies: int
    turn: asyncio.Future[None]


@dataclass(frozen=True, slots=True)
class Wait:
    """The seconds that a request may wait for memory, and the error after them."""

    seconds: float
    late: Callable[[float], RequestError]


def timed_out(seconds: float) -> RequestError:
    """Build the error of a request that has waited as long as it may take."""
    return RequestError(
        f"the request waited {seconds:g} s for others' images, which take all memory for images "
        "(--image-memory-mib); try again, or allow more time",
        status=504,
        code="timeout",
    )


class ImageShare:
    """The memory of one request's images, released at the end of the context: from then on the
    request itself holds it (`ImageMemory.charge`). group: of clients. copies: of each image, one
    for each answer. wait: how long the request may wait; None for any time."""

    def __init__(
        self, memory: ImageMemory, group: str, *, copies: int = 1, wait: Wait | None = None
    ) -> None:
        self._memory = memory
        self._wait = wait
        self.group = group
        self.copies = copies
        self.held_bytes = 0

    def __enter__(self) -> ImageShare:
        return self

    def __exit__(self, *error: object) -> None:
        self._memory.change(self.group, -self.held_bytes)
        self.held_bytes = 0

    async def reserve(self, size_bytes: int) -> None:
        """Reserve memory for images of so many bytes, or all that there is, when it is the
        request's turn. Raises the `RequestError` of its `Wait` if that takes too long."""
        wanted, wait = min(size_bytes * self.copies, self._memory.most_bytes), self._wait
        try:
            async with asyncio.timeout(None if wait is None else wait.seconds):
                await self._memory.reserve(self.group, wanted, self.copies)
        except TimeoutError:
            assert wait is not None
            raise wait.late(wait.seconds) from None
        self.held_bytes = wanted

    def settle(self, size_bytes: int) -> None:
        """Keep the memory for images of so many bytes, and give back the rest. Raises
        `RequestError` if the answers of one request need more than there is."""
        needed = size_bytes * self.copies
        if needed > self._memory.most_bytes:
            raise RequestError(
                f"the images have {size_bytes >> 20} MiB of pixels for each of {self.copies} "
                f"answers, and this server keeps {self._memory.most_bytes >> 20} MiB of all "
                "open requests; ask for fewer answers, or start it with more --image-memory-mib",
                param="messages",
                code=TOO_MANY,
            )
        self._memory.change(self.group, needed - self.held_bytes)
        self.held_bytes = needed


class ImageMemory:
    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.held_bytes = 0
        self._by_group: Counter[str] = Counter()
        self._of_requests: dict[int, tuple[str, int]] = {}
        self._waiters: dict[_Waiter, None] = {}  # in order, each once
        self._closed = False

    def share(self, group: str, *, copies: int = 1, wait: Wait | None = None) -> ImageShare:
        """Open a share for the images of one request, as of `ImageShare`."""
        return ImageShare(self, group, copies=copies, wait=wait)

    @property
    def waiting(self) -> Counter[str]:
        """Count the answers that wait for memory, by the group of their client."""
        found: Counter[str] = Counter()
        for waiter in self._waiters:
            found[waiter.group] += waiter.copies
        return found

    def figures(self) -> Mapping[str, int]:
        """Return the bytes held, and the answers that wait for memory."""
        return {"held_bytes": self.held_bytes, "waiting": self.waiting.total()}

    # ---- before a request is queued -----------------------------------------------------------

    async def reserve(self, group: str, size_bytes: int, copies: int) -> None:
        """Reserve memory, of which there is at least so much in all, when it is the group's turn.
        Raises `EngineDeadError` at the end of the server."""
        turn = asyncio.get_running_loop().create_future()
        waiter = _Waiter(group, size_bytes, copies, turn)
        self._waiters[waiter] = None
        self._grant()
        try:
            if self._closed and not turn.done():
                raise _ending()
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self.change(group, -size_bytes)  # its turn came with its end
            raise
        finally:
            if waiter in self._waiters:
                del self._waiters[waiter]
                self._grant()  # one that was too large held up others

    def change(self, group: str, size_bytes: int) -> None:
        """Change the bytes that a group of clients holds."""
        self.held_bytes += size_bytes
        self._by_group[group] += size_bytes
        if not self._by_group[group]:
            del self._by_group[group]
        if size_bytes < 0:
            self._grant()

    def check_room(self, size_bytes: int) -> None:
        """Raise `RequestError` (503) unless a request that is decoded already finds room at
        once."""
        if size_bytes and self.held_bytes + size_bytes > self.most_bytes:
            raise RequestError(
                f"images of open requests take all of the {self.most_bytes >> 20} MiB that this "
                "server keeps (--image-memory-mib); send it again in a moment",
                status=503,
                code=TOO_MANY,
            )

    def close(self) -> None:
        """End the waiting for memory: the server ends."""
        self._closed = True
        for waiter in self._waiters:
            if not waiter.turn.done():
                waiter.turn.set_exception(_ending())

    def _grant(self) -> None:
        """Give memory to those whose turn it is."""
        while waiting := [each for each in self._waiters if not each.turn.done()]:
            waiter = min(waiting, key=lambda each: self._by_group[each.group])
            if self.held_bytes and self.held_bytes + waiter.size_bytes > self.most_bytes:
                return
            del self._waiters[waiter]
            self.change(waiter.group, waiter.size_bytes)
            waiter.turn.set_result(None)

    # ---- of queued requests -------------------------------------------------------------------

    def charge(self, number: int, group: str, size_bytes: int) -> None:
        """Count the images of a request that is queued now, until `release`."""
        if size_bytes:
            self._of_requests[number] = group, size_bytes
            self.change(group, size_bytes)

    def release(self, number: int) -> None:
        """Give back the memory of a request that has ended; others are ignored."""
        group, size_bytes = self._of_requests.pop(number, ("", 0))
        if size_bytes:
            self.change(group, -size_bytes)


def _ending() -> EngineDeadError:
    return EngineDeadError("the engine was shut down")
