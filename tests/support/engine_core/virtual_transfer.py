"""Engines that exchange pages over a network of this process, on a clock that the test turns.

Frames are encoded and decoded as on a real connection, and the network loses, doubles, delays and
reorders them, or cuts a connection, as a test's dice say. An engine is a real scheduler over a real
pool; the content of a block is a function of the tokens before its end, so a block with other
content than its hash promises is seen when a prompt finds it.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import cast

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from atom.kv_transfer_config.values import KVRole, KVTransferConfig
from atom.model_engine.block_manager import BlockManager, BlockTables, PrefixMatch
from atom.model_engine.kv_transfer.cache_pages import CachePages
from atom.model_engine.kv_transfer.channel_events import (
    ChannelEvent,
    DoneWith,
    LinkLost,
    PageCame,
    PagesEnded,
    Place,
    PlaceLost,
    Renewed,
    TicketGone,
    Wanted,
    Welcomed,
)
from atom.model_engine.kv_transfer.frames import (
    LENGTH,
    Done,
    Frame,
    Gone,
    Have,
    Page,
    Renew,
    Run,
    Want,
    decode_frame,
    encode_frame,
    page_frame,
)
from atom.model_engine.kv_transfer.request_desk import RequestDesk
from atom.model_engine.kv_transfer.transfer import KVTransfer
from atom.model_engine.request import LoRARequest, Request
from atom.model_engine.scheduler import Scheduler
from atom.model_engine.step_pipeline import StepPipeline
from atom.model_engine.transfer_legs import (
    DecodeLeg,
    PrefillLeg,
    TicketNote,
    TransferOutcome,
)
from atom.model_engine.wire.engine_protocol import FinishedRow
from tests.support.engine_core.builders_engine import FakeModel, make_request, make_scheduler

TICK_SECONDS = 0.1
LAYOUT = "ab" * 16
_PAGE_REPEATS = 3


def page_of(hash_: int) -> bytes:
    """The content of the block that is found by this hash."""
    return hash_.to_bytes(8, "little") * _PAGE_REPEATS


class ContentBlocks(BlockManager):
    """Remembers what every block holds, and looks at it whenever a prompt finds it."""

    contents: dict[int, bytes]

    def publish(
        self,
        block_tables: BlockTables,
        tokens: NDArray[np.int32],
        first_block: int,
        chain: int,
        lora: LoRARequest | None = None,
    ) -> int:
        after = super().publish(block_tables, tokens, first_block, chain, lora)
        for row, block in enumerate(tokens.reshape(-1, self.block_size)):
            chain = xxhash.xxh64_intdigest(block.tobytes(), chain)
            for table, mark in zip(block_tables, self._marks, strict=True):
                self.contents[table[first_block + row]] = page_of(chain ^ mark)
        return after

    def match_prefix(
        self, tokens: NDArray[np.int32], salt: str = "", lora: LoRARequest | None = None
    ) -> PrefixMatch:
        match = super().match_prefix(tokens, salt, lora)
        for block_id in itertools.chain.from_iterable(match.block_ids):
            hash_ = self.pool._hashes[block_id]
            assert hash_ is not None
            assert self.contents[block_id] == page_of(hash_), f"block {block_id}: other tokens'"
        return match


class Contents:
    """The pages of a ContentBlocks."""

    def __init__(self, blocks: ContentBlocks) -> None:
        self._blocks = blocks

    copies_beside_steps = False
    device_memory = None

    def page_bytes(self, group: int) -> int:
        return 8 * _PAGE_REPEATS

    def tensors(self) -> list[str]:
        return []

    def read(self, group: int, block_ids: Sequence[int]) -> list[bytes | memoryview]:
        return [self._blocks.contents[block_id] for block_id in block_ids]

    def submitted_steps(self) -> None:
        return

    def write(
        self,
        group: int,
        block_ids: Sequence[int],
        pages: Sequence[bytes | memoryview],
        after: object | None = None,
    ) -> None:
        for block_id, page in zip(block_ids, pages, strict=True):
            self._blocks.contents[block_id] = bytes(page)


@dataclass(slots=True)
class Faults:
    """The chances of a fault for each message. delay_seconds: most that one is late."""

    lost: float = 0.0
    doubled: float = 0.0
    damaged: float = 0.0
    delay_seconds: float = 0.0
    cut: float = 0.0


@dataclass(order=True, slots=True)
class _Message:
    due: float
    number: int
    to: VirtualChannel = field(compare=False)
    event: ChannelEvent = field(compare=False)


class Network:
    """Carries events between the channels of engines. now: in seconds."""

    def __init__(self, dice: random.Random) -> None:
        self.now = 0.0
        self.faults = Faults()
        self._dice = dice
        self._messages: list[_Message] = []
        self._numbers = itertools.count()
        self.links = itertools.count(1)
        self.channels: dict[Place, VirtualChannel] = {}

    def send(self, to: VirtualChannel, event: ChannelEvent) -> None:
        """Deliver an event, or lose, double or delay it."""
        faults, dice = self.faults, self._dice
        if dice.random() < faults.lost:
            return
        for _ in range(2 if dice.random() < faults.doubled else 1):
            due = self.now + dice.uniform(0, faults.delay_seconds)
            heapq.heappush(self._messages, _Message(due, next(self._numbers), to, event))

    def cuts(self) -> bool:
        return self._dice.random() < self.faults.cut

    def damages(self) -> bool:
        return self._dice.random() < self.faults.damaged

    def tick(self) -> None:
        self.now += TICK_SECONDS
        while self._messages and self._messages[0].due <= self.now:
            message = heapq.heappop(self._messages)
            message.to.inbox.append(message.event)


def _carried(frame: Frame) -> Frame:
    """A frame as the other side decodes it."""
    return decode_frame(encode_frame(frame)[LENGTH.size :])


class VirtualChannel:
    """One engine's end of the network."""

    wake_fd = -1

    def __init__(self, network: Network, place: Place) -> None:
        self._network = network
        self.place = place
        self.inbox: list[ChannelEvent] = []
        self._links: dict[int, VirtualChannel] = {}  # of consumers
        self._linked: dict[Place, int] = {}  # of producers
        network.channels[place] = self

    def take_events(self) -> list[ChannelEvent]:
        taken, self.inbox = self.inbox, []
        return taken

    def want(self, place: Place, ticket: str, runs: Sequence[Run], first_token: int) -> None:
        self._to_producer(place, Want(ticket, "0" * 32, list(runs), first_token))

    def renew(self, place: Place, tickets: Sequence[str]) -> None:
        self._to_producer(place, Renew(list(tickets)))

    def done(self, place: Place, ticket: str) -> None:
        self._to_producer(place, Done(ticket))

    def tell(self, event: ChannelEvent) -> None:
        self.inbox.append(event)

    def consumed(self, page: PageCame) -> None:
        """Nothing is bounded here."""

    def unsent_bytes(self, link: int) -> int:
        return 0

    def close(self) -> None:
        """Nothing is open."""

    def answer(self, link: int, frame: Frame) -> None:
        self._send(link, frame)

    def send_page(self, link: int, ticket: str, number: int, page: bytes | memoryview) -> None:
        self._send(link, page_frame(ticket, number, page), page)

    def _send(self, link: int, frame: Frame, payload: bytes | memoryview = b"") -> None:
        consumer = self._links.get(link)
        if consumer is None:
            return
        told = _carried(frame)
        event: ChannelEvent
        if isinstance(told, Page):
            content = bytearray(payload)
            if self._network.damages():
                content[0] ^= 1
            whole = xxhash.xxh3_64_digest(content) == told.sum
            event = PageCame(self.place, told.ticket, told.number, bytes(content), whole)
        elif isinstance(told, Have):
            event = PagesEnded(told.ticket)
        else:
            assert isinstance(told, Gone)
            event = TicketGone(told.ticket, told.reason)
        self._network.send(consumer, event)
        if self._network.cuts():
            self.cut(link)

    def cut(self, link: int) -> None:
        """End a consumer's connection; both ends hear of it."""
        consumer = self._links.pop(link)
        consumer._linked.pop(self.place, None)
        self.inbox.append(LinkLost(link))
        consumer.inbox.append(PlaceLost(self.place, "cut", welcomed=True))

    def vanish(self) -> None:
        """Be gone without a word, as a machine that lost its power."""
        del self._network.channels[self.place]
        self._links.clear()

    def _to_producer(self, place: Place, frame: Frame) -> None:
        producer = self._network.channels.get(place)
        if producer is None:
            self.inbox.append(PlaceLost(place, "no route", welcomed=False))
            return
        link = self._linked.get(place)
        if link is None:
            link = self._linked[place] = next(self._network.links)
            producer._links[link] = self
            self.inbox.append(Welcomed(place))
        told = _carried(frame)
        event: ChannelEvent
        if isinstance(told, Want):
            event = Wanted(link, told)
        elif isinstance(told, Renew):
            event = Renewed(link, told.tickets)
        else:
            assert isinstance(told, Done)
            event = DoneWith(told.ticket)
        self._network.send(producer, event)


class _Queue:
    """A pipeline's queue, of requests without structured output."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.add = scheduler.add
        self.knows, self.is_waiting = scheduler.knows, scheduler.is_waiting

    def abort(self, request_ids: Iterable[int]) -> list[FinishedRow]:
        return self._scheduler.abort(request_ids)

    def open_requests(self) -> tuple[int, ...]:
        return self._scheduler.open_requests


class VirtualEngine:
    """One engine. outcomes: of its decode legs, and when; finished: rows of all ends."""

    def __init__(
        self,
        network: Network,
        name: str,
        *,
        role: KVRole = KVRole.BOTH,
        num_blocks: int = 64,
        windows: tuple[int | None, ...] = (None,),
        **fields: object,
    ) -> None:
        """fields: of KVTransferConfig."""
        self.network = network
        self.config = KVTransferConfig(
            **{"role": role, "recompute_threshold": 0, **fields}  # type: ignore[arg-type]
        )
        self.scheduler = make_scheduler(
            num_blocks=num_blocks, blocks_type=ContentBlocks, windows=windows
        )
        blocks = self.scheduler.blocks
        assert isinstance(blocks, ContentBlocks)
        blocks.contents = {}
        self.model = FakeModel(self.scheduler)
        self.channel = VirtualChannel(network, Place(name, 1))
        note = TicketNote(name, name, 1, LAYOUT, "", 0, [])
        self.transfer = KVTransfer(
            self.config,
            CachePages(blocks, Contents(blocks)),
            self.channel,
            note,
            lambda: network.now,
        )
        self.scheduler.keeper = self.transfer.kept
        self.queue = _Queue(self.scheduler)
        self.desk = RequestDesk(cast(StepPipeline, self.queue), self.transfer)
        self.outcomes: dict[int, tuple[float, TransferOutcome]] = {}
        self.entered: dict[int, float] = {}

    @property
    def finished(self) -> dict[int, FinishedRow]:
        return self.model.finished

    def add(self, request: Request) -> None:
        self.entered[request.id] = self.network.now
        for row in self.desk.enter(request):
            self.finished[row.request_id] = row

    def abort(self, request_id: int) -> None:
        for row in self.desk.abort([request_id]):
            self.finished[row.request_id] = row

    def turn(self) -> None:
        for news in self.desk.exchange_pages():
            for outcome in news.outcomes:
                number = outcome.request_id
                assert number not in self.outcomes, "a request joins once"
                self.outcomes[number] = (self.network.now, outcome)
            for row in news.finished:
                self.finished[row.request_id] = row
        if self.scheduler.has_work() and self.model.step() is None:
            self.desk.make_room()
        self.scheduler.blocks.pool.check_integrity()

    @property
    def held_blocks(self) -> int:
        return self.scheduler.blocks.pool.num_referenced


def prefill_request(number: int, prompt: list[int], **fields: object) -> Request:
    request = make_request(number, prompt, max_tokens=1, **fields)  # type: ignore[arg-type]
    return msgspec.structs.replace(request, kv_transfer=PrefillLeg())


def decode_request(
    number: int, prompt: list[int], note: TicketNote, *, max_tokens: int = 4, **fields: object
) -> Request:
    request = make_request(number, prompt, max_tokens=max_tokens, **fields)  # type: ignore[arg-type]
    leg = DecodeLeg(note.host, note.port, note.engine_id, note.ticket, note.layout, note.num_tokens)
    return msgspec.structs.replace(request, kv_transfer=leg)
