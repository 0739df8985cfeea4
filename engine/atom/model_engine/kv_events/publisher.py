"""KVEventPublisher: each step's events to every reader, and the newest batches again on request.

A PUB socket sends three frames: topic, sequence number (8 bytes, big-endian) and batch. A ROUTER
answers `["", start]` with `["", topic, number, batch]` for each stored batch from `start` on, and
then with an empty batch. Both are vLLM's, so its readers need nothing else. A reader that asks for
the first batch after its eviction gets all cached blocks as batch 0. Numbers then continue from
there, as readers know from engines that restart. The engine's thread hands over a list; a separate
thread encodes and sends.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Sequence

import msgspec
import zmq

from atom.errors import ConfigError
from atom.kv_events_config import KVEventsConfig
from atom.model_engine.block_manager import BlockManager
from atom.model_engine.blocks.block_log import BlockLog, Entry
from atom.model_engine.kv_events.cached_blocks import CachedBlocks
from atom.model_engine.kv_events.events import EventBatch, EventMaker

logger = logging.getLogger(__name__)

_NUMBER_BYTES = 8
_END = (-1).to_bytes(_NUMBER_BYTES, "big", signed=True)
_JOIN_SECONDS = 2.0
_LINGER_MS = 500


class KVEventPublisher:
    """Publish the changes of one rank's prefix cache from a separate thread."""

    def __init__(self, config: KVEventsConfig, rank: int, blocks: BlockManager) -> None:
        """rank: of data parallelism; tcp ports count up by it. Raises `ConfigError` if an endpoint
        cannot be opened."""
        own = config.of_rank(rank)
        self._rank = rank
        self._log = BlockLog()
        blocks.tell(self._log)
        self._maker = EventMaker(blocks.block_size, [group.mask for group in blocks.groups])
        self._topic = own.topic.encode()
        self._encoder = msgspec.msgpack.Encoder()
        self._queue: queue.Queue[list[Entry] | None] = queue.Queue(own.max_queue_size)
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=own.buffer_steps)
        self._next = 0
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._context = zmq.Context()
        self._live = self._bound(zmq.PUB, own.endpoint, own.hwm)
        self._replay: zmq.Socket[bytes] | None = None
        self._cached: CachedBlocks | None = None
        if own.replay_endpoint is not None:
            # A replay is bounded by the stored batches, and none of it may be dropped.
            self._replay = self._bound(zmq.ROUTER, own.replay_endpoint, 0)
            self._cached = CachedBlocks(blocks.block_size)
        logger.info("KV events are published at %s", own.endpoint)
        self._thread = threading.Thread(target=self._run, name="kv-events", daemon=True)
        self._thread.start()

    def publish(self) -> None:
        """Queue the changes since the last call, if there are any. Blocks while the queue is
        full."""
        entries = self._log.take()
        if entries:
            self._queue.put(entries)
            os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        """Send the queued events, then stop the thread and close the sockets."""
        self._queue.put(None)
        os.eventfd_write(self._wake, 1)
        self._thread.join(_JOIN_SECONDS)
        self._context.destroy(linger=_LINGER_MS)
        os.close(self._wake)

    def _bound(self, kind: int, endpoint: str, hwm: int) -> zmq.Socket[bytes]:
        socket: zmq.Socket[bytes] = self._context.socket(kind)
        socket.set_hwm(hwm)
        try:
            socket.bind(endpoint)
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise ConfigError(
                f"--kv-events-config: cannot listen at {endpoint}: {error}; choose another, or "
                "end what has it"
            ) from None
        return socket

    # ---- the thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._wake, zmq.POLLIN)
        if self._replay is not None:
            poller.register(self._replay, zmq.POLLIN)
        going = True
        while going:
            ready = dict(poller.poll())
            if self._wake in ready:
                os.eventfd_read(self._wake)
                going = self._send_waiting()
            if self._replay is not None and self._replay in ready:
                self._answer(self._replay)

    def _send_waiting(self) -> bool:
        """Send the queued events. Returns False after the last one."""
        while True:
            try:
                entries = self._queue.get_nowait()
            except queue.Empty:
                return True
            if entries is None:
                return False
            self._send(entries)

    def _send(self, entries: Sequence[Entry]) -> None:
        if self._cached is not None:
            self._cached.follow(entries)
        number, payload = self._numbered(entries)
        self._live.send_multipart((self._topic, _frame(number), payload))

    def _numbered(self, entries: Sequence[Entry]) -> tuple[int, bytes]:
        """Make the next batch, and keep it."""
        batch = EventBatch(time.time(), self._maker.events(entries), self._rank)
        number, payload = self._next, self._encoder.encode(batch)
        self._next += 1
        self._kept.append((number, payload))
        return number, payload

    def _start_anew(self, cached: CachedBlocks) -> None:
        """Reset the stored batches to a batch 0 with all cached blocks."""
        self._kept.clear()
        self._next = 0
        self._numbered(cached.entries())

    def _answer(self, replay: zmq.Socket[bytes]) -> None:
        """Resend the batches that a reader asks for; a malformed request gets the end frame
        alone."""
        reader, *asked = replay.recv_multipart()
        start = asked[-1] if asked else b""
        if len(asked) == 2 and not asked[0] and len(start) == _NUMBER_BYTES:
            first = int.from_bytes(start, "big")
            is_gone = bool(self._kept) and self._kept[0][0] > 0
            if first == 0 and is_gone and self._cached is not None:
                self._start_anew(self._cached)
            for number, payload in self._kept:
                if number >= first:
                    replay.send_multipart((reader, b"", self._topic, _frame(number), payload))
        else:
            logger.warning("a replay of KV events was asked for in %d odd frames", len(asked))
        replay.send_multipart((reader, b"", b"", _END, b""))


def _frame(number: int) -> bytes:
    return number.to_bytes(_NUMBER_BYTES, "big")
