"""SideChannel: the connections of one engine to the engines that it exchanges KV pages with.

A thread with its own event loop: it frames, verifies checksums and bounds what waits, and knows
neither blocks nor requests. The engine core's thread posts calls and takes events; neither waits
for the other. One connection per pair of engine processes, opened by the consumer; a silent or
malformed peer loses its connection and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ipaddress import ip_network

from atom.model_engine.kv_transfer.channel_events import (
    ChannelEvent,
    DoneWith,
    LinkLost,
    PageCame,
    Place,
    Renewed,
    Wanted,
)
from atom.model_engine.kv_transfer.framed_stream import HANDSHAKE_SECONDS, FramedStream
from atom.model_engine.kv_transfer.frames import (
    Done,
    Frame,
    FrameError,
    Hello,
    Mapped,
    Refused,
    Renew,
    Run,
    Used,
    Want,
    Welcome,
    page_frame,
)
from atom.model_engine.kv_transfer.greeting import IPC, TCP, Greeting, remedy_of
from atom.model_engine.kv_transfer.page_ring import DeviceRing
from atom.model_engine.kv_transfer.producer_peer import PeerLimits, ProducerPeer
from atom.model_engine.kv_transfer.ring_offers import Movers, RingOffers
from atom.model_engine.page_access import PageContent

logger = logging.getLogger(__name__)

MOST_LINKS = 256
MOST_PEERS = 256
_CLOSE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class ChannelPlace:
    """Locate the listener of this engine, and the networks of the producers that it may read from,
    in CIDR notation. port 0: any free one. most_page_bytes: of one page."""

    host: str
    port: int
    allowed_networks: tuple[str, ...]
    most_page_bytes: int


class Inbox:
    """Events for the engine core's thread. fd: readable while there is one."""

    def __init__(self) -> None:
        self.fd, self._wake = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._wake, False)
        self._events: deque[ChannelEvent] = deque()

    def put(self, event: ChannelEvent) -> None:
        """Add an event, from any thread."""
        self._events.append(event)
        with contextlib.suppress(BlockingIOError):  # a full pipe is readable anyway
            os.write(self._wake, b"!")

    def take(self) -> list[ChannelEvent]:
        """Return all events so far."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.fd, 65_536)
        taken = []
        while self._events:
            taken.append(self._events.popleft())
        return taken

    def close(self) -> None:
        os.close(self._wake)
        os.close(self.fd)


class SideChannel:
    """Serve consumers and read from producers, each over one connection."""

    def __init__(
        self,
        place: ChannelPlace,
        greeting: Greeting,
        movers: Movers | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """movers: of the transports in the greeting."""
        movers = Movers() if movers is None else movers
        self._place = place
        networks = [ip_network(each) for each in place.allowed_networks]
        may_inline = TCP in greeting.transports
        self._limits = PeerLimits(networks, place.most_page_bytes, may_inline, movers)
        self._greeting = greeting
        with_memory = greeting.transports if greeting.host else ()
        self._offers = RingOffers(with_memory, place.most_page_bytes, movers)
        self._clock = clock
        self._inbox = Inbox()
        self._loop = asyncio.new_event_loop()
        self._numbers = itertools.count(1)
        self._links: dict[int, FramedStream] = {}
        self._peers: dict[Place, ProducerPeer] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._thread = threading.Thread(target=self._run, name="kv-side-channel", daemon=True)

    # ---- the engine core's side ---------------------------------------------------------------

    @property
    def wake_fd(self) -> int:
        return self._inbox.fd

    def start(self) -> int:
        """Begin to listen; returns the port. Raises `OSError` if the place is taken."""
        self._server = self._loop.run_until_complete(
            asyncio.start_server(self._serve, self._place.host, self._place.port)
        )
        self._keep(self._loop.create_task(self._offers.serve()))
        port: int = self._server.sockets[0].getsockname()[1]
        self._thread.start()
        return port

    def take_events(self) -> list[ChannelEvent]:
        return self._inbox.take()

    def tell(self, event: ChannelEvent) -> None:
        """Add an event of this engine's own, from any thread."""
        self._inbox.put(event)

    def want(self, place: Place, ticket: str, runs: Sequence[Run], first_token: int) -> None:
        """Ask a producer for pages; `PlaceLost` follows if it cannot be reached."""
        self._post(lambda: self._peer(place).want(ticket, list(runs), first_token))

    def renew(self, place: Place, tickets: Sequence[str]) -> None:
        self._post(lambda: self._peer(place).send(Renew(list(tickets))))

    def done(self, place: Place, ticket: str) -> None:
        """Give a ticket back, whether its pages were read or not."""
        self._post(lambda: self._peer(place).done(ticket))

    def consumed(self, page: PageCame) -> None:
        """Note that the bytes of a page have been used or dropped, in the order of arrival."""
        self._post(lambda: self._consumed(page))

    def answer(self, link: int, frame: Frame) -> None:
        """Send a frame to a consumer; nothing if it is gone."""
        stream = self._links.get(link)
        if stream is not None:
            self._post(lambda: stream.send(frame))

    def reads_device(self, link: int) -> bool:
        """Return whether a consumer reads pages from this engine's device."""
        stream = self._links.get(link)
        return stream is not None and isinstance(stream.ring, DeviceRing)

    def send_page(self, link: int, ticket: str, number: int, page: PageContent) -> None:
        """Send a page to a consumer, with the checksum that the channel's thread computes; nothing
        if the consumer is gone. number: in the ticket's want."""
        stream = self._links.get(link)
        if stream is not None:
            stream.count_unsent(len(page))
            self._post(lambda: stream.send(page_frame(ticket, number, page), page))

    def unsent_bytes(self, link: int) -> int:
        """Return the bytes of pages that wait for a consumer to read."""
        stream = self._links.get(link)
        return 0 if stream is None else stream.unsent_bytes

    def close(self) -> None:
        """End the thread and all connections."""
        if self._thread.is_alive():
            self._post(self._loop.stop)
            self._thread.join(_CLOSE_SECONDS)
        self._inbox.close()

    def _post(self, call: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(call)

    # ---- the channel's thread -----------------------------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            if self._server is not None:
                self._server.close()
            self._loop.run_until_complete(self._end_tasks())
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()
            self._offers.close()
            if self._limits.movers.nixl is not None:
                self._limits.movers.nixl.stop()

    async def _end_tasks(self) -> None:
        """Cancel every task, and let each give back its memory."""
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_CLOSE_SECONDS / 2)

    def _peer(self, place: Place) -> ProducerPeer:
        peer = self._peers.get(place)
        if peer is None or peer.ended:
            if len(self._peers) >= MOST_PEERS:
                self._close_idle_peer()
            hello = self._greeting.hello(self._clock())
            number = next(self._numbers)
            peer = ProducerPeer(number, place, hello, self._limits, self._inbox.put)
            self._peers[place] = peer
            self._keep(self._loop.create_task(self._follow(peer)))
        return peer

    async def _follow(self, peer: ProducerPeer) -> None:
        lost = await peer.run()
        if self._peers.get(peer.place) is peer:
            del self._peers[peer.place]
        if lost is not None:
            self._inbox.put(lost)

    def _close_idle_peer(self) -> None:
        for peer in self._peers.values():
            if peer.is_idle:
                peer.close()
                return

    def _consumed(self, page: PageCame) -> None:
        peer = self._peers.get(page.place)
        if peer is not None:
            peer.consumed(page)

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one consumer until it leaves."""
        stream = FramedStream(reader, writer)
        number = next(self._numbers)
        try:
            if len(self._links) < MOST_LINKS and await self._greet(number, stream):
                self._links[number] = stream
                await self._read_link(number, stream)
        except FrameError as error:
            logger.warning("kv transfer: the consumer %s sent %s", stream.peer_name, error)
        except asyncio.CancelledError:
            return  # the channel closes; asyncio's streams would log the cancelled task
        except (OSError, EOFError, TimeoutError) as error:
            logger.info("kv transfer: the consumer %s is gone: %r", stream.peer_name, error)
        finally:
            if self._links.pop(number, None) is not None:
                self._inbox.put(LinkLost(number))
            stream.close()
            self._offers.withdraw(number)

    async def _greet(self, number: int, stream: FramedStream) -> bool:
        async with asyncio.timeout(HANDSHAKE_SECONDS):
            hello = await stream.read()
        if not isinstance(hello, Hello):
            raise FrameError(f"a {type(hello).__name__} before its hello")
        answer = self._answer(number, hello)
        stream.send(answer)
        if isinstance(answer, Refused):
            logger.warning(
                "kv transfer: refused the consumer %s (%s): its %s is %r and ours %r; %s",
                *(hello.engine_id, stream.peer_name, answer.field, answer.theirs, answer.mine),
                remedy_of(answer.field),
            )
            await stream.drain()
            return False
        return True

    def _answer(self, number: int, hello: Hello) -> Welcome | Refused:
        """Return the answer to a consumer, with memory for its pages. Raises `OSError` if there is
        none; that of a device is replaced by another transport."""
        offers = self._offers.transports
        answer = self._greeting.answer(hello, self._clock(), offers=offers)
        try:
            return self._offers.offer(number, answer) if isinstance(answer, Welcome) else answer
        except OSError as error:
            if not isinstance(answer, Welcome) or answer.transport != IPC:
                raise
            logger.warning("kv transfer: no memory of the device for a consumer: %s", error)
        answer = self._greeting.answer(hello, self._clock(), offers=offers - {IPC})
        return self._offers.offer(number, answer) if isinstance(answer, Welcome) else answer

    async def _read_link(self, number: int, stream: FramedStream) -> None:
        while True:
            frame = await stream.read()
            if isinstance(frame, Want):
                if frame.boot_id != self._greeting.boot_id:
                    raise FrameError("a want for an earlier process of this engine")
                self._inbox.put(Wanted(number, frame))
            elif isinstance(frame, Renew):
                self._inbox.put(Renewed(number, frame.tickets))
            elif isinstance(frame, Done):
                self._inbox.put(DoneWith(frame.ticket))
            elif isinstance(frame, Used):
                stream.take_used(frame.position)
            elif isinstance(frame, Mapped) and (ring := self._offers.ring_of(number)) is not None:
                stream.ring = ring
            else:
                raise FrameError(f"a {type(frame).__name__}, which is for a consumer")
