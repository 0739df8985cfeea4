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
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Network, IPv6Network, ip_address

import msgspec
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
    Mapped,
    OnDevice,
    Page,
    Refused,
    Run,
    Used,
    Want,
    Welcome,
)
from atom.model_engine.kv_transfer.memory_offers import fetch_memory
from atom.model_engine.kv_transfer.nixl_agent import NixlError, RemoteWindow
from atom.model_engine.kv_transfer.page_ring import (
    DeviceWindow,
    PageWindow,
    map_window,
    ring_bytes,
)
from atom.model_engine.kv_transfer.ring_offers import Movers
from atom.model_engine.page_access import DevicePage, PageContent

logger = logging.getLogger(__name__)

CONNECT_SECONDS = 2.0
_IDLE_SECONDS = 60.0
_MOST_UNUSED_BYTES = 256 * 2**20
_MOST_WAITING = 4096  # frames before the producer has answered


@dataclass(frozen=True, slots=True)
class PeerLimits:
    """Bound every producer. networks: those outside are not connected to; most_page_bytes: of one
    page; may_inline: pages may come by the connection itself; movers: read their memory."""

    networks: Sequence[IPv4Network | IPv6Network]
    most_page_bytes: int
    may_inline: bool = True
    movers: Movers = field(default_factory=Movers)


class ProducerPeer:
    """Read from one producer. number: of the connection; ended: it takes no more wants."""

    def __init__(
        self,
        number: int,
        place: Place,
        hello: Hello,
        limits: PeerLimits,
        tell: Callable[[ChannelEvent], None],
    ) -> None:
        """tell: takes the events."""
        self.number, self.place = number, place
        self.ended = False
        self._hello = hello
        self._limits = limits
        self._tell = tell
        self._stream: FramedStream | None = None
        self._boot_id = ""
        self._waiting: list[Frame] = []
        self._open: set[str] = set()  # tickets whose pages are awaited
        self._unused_bytes = 0
        self._window: PageWindow | None = None
        self._used, self._telling = 0, False
        self._fetches: set[asyncio.Task[None]] = set()  # pages that NIXL reads now
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

    def consumed(self, page: PageCame) -> None:
        """Note that a page's bytes are no longer read."""
        if page.connection != self.number:
            return  # of an earlier connection to this producer
        if page.at >= 0 and self._window is not None:
            self._used = self._window.use(page.at)
            if not self._telling:
                self._telling = True
                asyncio.get_running_loop().call_soon(self._tell_used)
            return
        self._unused_bytes -= len(page.payload)
        if self._unused_bytes <= _MOST_UNUSED_BYTES:
            self._room.set()

    def _tell_used(self) -> None:
        """Report how far pages were used, once for all that were used together."""
        self._telling = False
        if self._stream is not None and not self.ended:
            self._stream.send(Used(self._used))

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
            await self._end_fetches()
        return None

    async def _end_fetches(self) -> None:
        """Stop the reads that are under way, and then give their memory back."""
        for task in self._fetches:
            task.cancel()
        await asyncio.gather(*self._fetches, return_exceptions=True)
        if self._window is not None:
            self._window.close()

    async def _connect(self) -> Refused | None:
        """Connect and greet; returns the producer's refusal, if it refuses."""
        answer = await self._greet(self._hello)
        if isinstance(answer, Welcome) and answer.on_device and not self._maps(answer.on_device):
            assert self._stream is not None
            self._stream.close()
            others = [each for each in self._hello.transports if each != answer.transport]
            answer = await self._greet(msgspec.structs.replace(self._hello, transports=others))
        if isinstance(answer, Refused):
            return answer
        assert self._stream is not None
        if self._window is not None:
            self._stream.send(Mapped())
        elif answer.memory or answer.registered is not None:
            await self._map(answer, self._stream)
        by = "tcp" if self._window is None else answer.transport
        logger.info("kv transfer: pages of %s:%d come by %s", *self.place, by)
        self._boot_id = answer.boot_id
        self._tell(Welcomed(self.place))
        waiting, self._waiting = self._waiting, []
        for frame in waiting:
            if isinstance(frame, Want):
                frame = Want(frame.ticket, self._boot_id, frame.runs, frame.first_token)
            self.send(frame)
        return None

    async def _greet(self, hello: Hello) -> Welcome | Refused:
        """Connect, and return the producer's answer."""
        async with asyncio.timeout(CONNECT_SECONDS):
            address = await self._address()
            reader, writer = await asyncio.open_connection(address, self.place.port)
        self._stream = FramedStream(reader, writer)
        self._stream.send(hello)
        async with asyncio.timeout(HANDSHAKE_SECONDS):
            answer = await self._stream.read()
        if not isinstance(answer, Welcome | Refused):
            raise FrameError(f"a {type(answer).__name__} instead of a welcome")
        return answer

    def _maps(self, offered: OnDevice) -> bool:
        """Map the memory of the producer's device; returns whether it could be mapped."""
        device = self._limits.movers.device
        if device is None:
            raise FrameError("memory of a device, which this engine did not ask for")
        if offered.size > ring_bytes(self._limits.most_page_bytes):
            raise FrameError(f"memory of {offered.size} bytes on a device, which is too much")
        try:
            self._window = DeviceWindow(device, offered.handle, offered.size)
        except OSError as error:
            logger.warning(
                "kv transfer: the memory of %s, the device of %s:%d, cannot be mapped by %s: %s",
                *(offered.device, *self.place, device.device_name, error),
            )
            return False
        logger.info("kv transfer: %s reads %s", device.device_name, offered.device)
        return True

    async def _map(self, answer: Welcome, stream: FramedStream) -> None:
        """Map the memory that the producer offers; pages follow their frames if it cannot be."""
        try:
            self._window = await self._window_of(answer)
        except OSError as error:
            if not self._limits.may_inline:
                raise
            logger.info("kv transfer: the memory of %s:%d cannot be mapped: %s", *self.place, error)
            return
        stream.send(Mapped())

    async def _window_of(self, answer: Welcome) -> PageWindow:
        """Return this end of the memory that a welcome offers. Raises `OSError`."""
        if answer.registered is None:
            return map_window(await asyncio.to_thread(fetch_memory, answer.memory, answer.key))
        nixl = self._limits.movers.nixl
        if nixl is None:
            raise FrameError("memory by NIXL, which this engine did not ask for")
        return nixl.open(answer.registered, ring_bytes(self._limits.most_page_bytes))

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
                if self._fetches:  # its pages come before its end
                    await asyncio.wait(self._fetches)
                    if self.ended:
                        raise NixlError("a page could not be read")
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
        payload: PageContent | None
        if page.at >= 0:
            if self._window is None:
                raise FrameError("a page in memory that was not mapped")
            payload = self._window.page(page.at, page.size)
            if payload is None:  # a page that came before, or whose place was given back
                return
            if isinstance(self._window, RemoteWindow) and isinstance(payload, memoryview):
                task = asyncio.create_task(self._fetch(self._window, page, payload))
                self._fetches.add(task)
                task.add_done_callback(self._fetches.discard)
                return
        else:
            if self._window is not None:  # its bytes would be read from other frames
                raise FrameError("a page behind its frame, although memory is mapped")
            await self._room.wait()
            payload = await stream.read_payload(page.inline_bytes)
            self._unused_bytes += page.size
            if self._unused_bytes > _MOST_UNUSED_BYTES:
                self._room.clear()
        self._came(page, payload)

    async def _fetch(self, window: RemoteWindow, page: Page, payload: memoryview) -> None:
        """Read a page of another machine's memory; without it the connection ends."""
        try:
            await window.fetch(page.at, page.size)
        except NixlError as error:
            logger.warning("kv transfer: %s:%d: %s", *self.place, error)
            self.close()
            return
        self._came(page, payload)

    def _came(self, page: Page, payload: PageContent) -> None:
        """Tell of a page whose bytes are here, or on a device, where they are proven later."""
        if isinstance(payload, DevicePage):
            payload, whole = replace(payload, sum=page.sum), True
        else:
            whole = xxhash.xxh3_64_digest(payload) == page.sum
        place = self.number, page.at
        self._tell(PageCame(self.place, page.ticket, page.number, payload, whole, *place))
