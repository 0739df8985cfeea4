"""ProducerPeer: a consumer's connection to one producer, from the first want until it is idle.

It connects, greets, sends wants and reads pages; checksums are computed here, beside the engine's
steps. Pages that the engine has not yet used are bounded: beyond the bound nothing is read, and TCP
slows the producer down. Belongs to the side channel's thread.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address

import xxhash

from atom.model_engine.kv_transfer.channel_events import (
    ChannelEvent,
    PageCame,
    PagesEnded,
    Place,
    PlaceLost,
    TicketGone,
    Welcomed,
)
from atom.model_engine.kv_transfer.framed_stream import HANDSHAKE_SECONDS, FramedStream
from atom.model_engine.kv_transfer.frames import (
    Done,
    Frame,
    FrameError,
    Gone,
    Have,
    Hello,
    Page,
    Refused,
    Run,
    Want,
    Welcome,
)

logger = logging.getLogger(__name__)

CONNECT_SECONDS = 2.0
_IDLE_SECONDS = 60.0
_MOST_UNUSED_BYTES = 256 * 2**20
_MOST_WAITING = 4096  # frames before the producer has answered


@dataclass(frozen=True, slots=True)
class PeerLimits:
    """Bound every producer. networks: those outside are not connected to; most_page_bytes: of one
    page."""

    networks: Sequence[IPv4Network | IPv6Network]
    most_page_bytes: int


class ProducerPeer:
    """Read from one producer. ended: the connection takes no more wants."""

    def __init__(
        self,
        place: Place,
        hello: Hello,
        limits: PeerLimits,
        tell: Callable[[ChannelEvent], None],
    ) -> None:
        """tell: takes the events."""
        self.place = place
        self.ended = False
        self._hello = hello
        self._limits = limits
        self._tell = tell
        self._stream: FramedStream | None = None
        self._boot_id = ""
        self._waiting: list[Frame] = []
        self._open: set[str] = set()  # tickets whose pages are awaited
        self._unused_bytes = 0
        self._room = asyncio.Event()
        self._room.set()

    @property
    def is_idle(self) -> bool:
        return not self._open and not self._waiting

    def want(self, ticket: str, runs: list[Run], first_token: int) -> None:
        self._open.add(ticket)
        # The boot id is the producer's, and known once it has answered.
        self.send(Want(ticket, self._boot_id or "0" * 32, runs, first_token))

    def done(self, ticket: str) -> None:
        self._open.discard(ticket)
        self.send(Done(ticket))

    def send(self, frame: Frame) -> None:
        """Send a frame now, or once the producer has answered."""
        if self._boot_id and self._stream is not None:
            self._stream.send(frame)
        elif len(self._waiting) < _MOST_WAITING:
            self._waiting.append(frame)

    def consumed(self, num_bytes: int) -> None:
        """Note that bytes of pages are no longer kept."""
        self._unused_bytes -= num_bytes
        if self._unused_bytes <= _MOST_UNUSED_BYTES:
            self._room.set()

    def close(self) -> None:
        self.ended = True
        if self._stream is not None:
            self._stream.close()

    async def run(self) -> PlaceLost | None:
        """Serve the connection to its end; returns how it was lost, None if it was idle."""
        try:
            refused = await self._connect()
            if refused is not None:
                return PlaceLost(self.place, "its layout differs", True, refused)
            await self._read_pages()
        except FrameError as error:
            logger.warning("kv transfer: the producer %s:%d sent %s", *self.place, error)
            return PlaceLost(self.place, str(error), bool(self._boot_id))
        except (OSError, EOFError, TimeoutError) as error:
            return PlaceLost(self.place, repr(error), bool(self._boot_id))
        finally:
            self.close()
        return None

    async def _connect(self) -> Refused | None:
        """Connect and greet; returns the producer's refusal, if it refuses."""
        async with asyncio.timeout(CONNECT_SECONDS):
            address = await self._address()
            reader, writer = await asyncio.open_connection(address, self.place.port)
        self._stream = FramedStream(reader, writer)
        self._stream.send(self._hello)
        async with asyncio.timeout(HANDSHAKE_SECONDS):
            answer = await self._stream.read()
        if isinstance(answer, Refused):
            return answer
        if not isinstance(answer, Welcome):
            raise FrameError(f"a {type(answer).__name__} instead of a welcome")
        self._boot_id = answer.boot_id
        self._tell(Welcomed(self.place))
        waiting, self._waiting = self._waiting, []
        for frame in waiting:
            if isinstance(frame, Want):
                frame = Want(frame.ticket, self._boot_id, frame.runs, frame.first_token)
            self.send(frame)
        return None

    async def _address(self) -> str:
        """Resolve the producer's name to an address that may be connected to."""
        found = await asyncio.get_running_loop().getaddrinfo(
            self.place.host, self.place.port, type=socket.SOCK_STREAM
        )
        addresses = [str(sockaddr[0]) for *_, sockaddr in found]
        for address in addresses:
            if any(ip_address(address) in network for network in self._limits.networks):
                return address
        raise OSError(
            f"{self.place.host} is {', '.join(addresses)}, outside allowed_networks of "
            "--kv-transfer-config"
        )

    async def _read_pages(self) -> None:
        assert self._stream is not None
        while True:
            try:
                async with asyncio.timeout(_IDLE_SECONDS):
                    frame = await self._stream.read()
            except TimeoutError:
                if self.is_idle:
                    return
                continue
            if isinstance(frame, Page):
                await self._read_page(frame, self._stream)
            elif isinstance(frame, Have):
                self._open.discard(frame.ticket)
                self._tell(PagesEnded(frame.ticket))
            elif isinstance(frame, Gone):
                self._open.discard(frame.ticket)
                self._tell(TicketGone(frame.ticket, frame.reason))
            else:
                raise FrameError(f"a {type(frame).__name__}, which is for a producer")

    async def _read_page(self, page: Page, stream: FramedStream) -> None:
        if page.size > self._limits.most_page_bytes:
            raise FrameError(
                f"a page of {page.size} bytes; pages have {self._limits.most_page_bytes}"
            )
        await self._room.wait()
        payload = await stream.read_payload(page.size)
        whole = xxhash.xxh3_64_digest(payload) == page.sum
        self._unused_bytes += page.size
        if self._unused_bytes > _MOST_UNUSED_BYTES:
            self._room.clear()
        self._tell(PageCame(self.place, page.ticket, page.number, payload, whole))
