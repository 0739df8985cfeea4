"""Prefill and decode in separate engines: pages of prompts on their way between virtual engines.

A prefill engine computes a prompt and keeps its blocks until they are read. The decode engine
takes blocks for them, as the engine's AwaitedPages does, publishes them to its prefix cache when
they have come, and holds them until the request is admitted. Pages of one prefill engine are sent
one prompt after the other. First come, first served: a prompt that finds no room waits, and so do
those behind it. Used by the simulation; knows no sockets.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from atom.advisor.virtual.engine import VirtualEngine
from atom.kv_transfer_config.values import KVTransferConfig
from atom.model_engine.block_manager import PrefixMatch
from atom.model_engine.kv_transfer.pulling.pull_plan import PullPlan, PullRoom, plan_pull
from atom.model_engine.request import Request
from atom.sizing.options.least_tokens import DEFAULT_LEAST_TOKENS


@dataclass(frozen=True, slots=True)
class Pair:
    """Describe the division of a fleet. prefills: engines that compute prompts, before the others;
    bytes_per_second, seconds: of the link of a prefill engine, and of each prompt's exchange;
    least_tokens: prompts with fewer are computed where they are answered."""

    prefills: int
    bytes_per_second: float
    seconds: float = 0.002
    least_tokens: int = DEFAULT_LEAST_TOKENS


@dataclass(slots=True)
class Sending:
    """A computed prompt on its way. kept: blocks of the prefill engine; taken: blocks of the decode
    engine, once it has room."""

    request: Request
    producer: VirtualEngine
    kept: list[list[int]]
    tokens: NDArray[np.int32]
    match: PrefixMatch | None = None
    plan: PullPlan | None = None
    taken: list[list[int]] = field(default_factory=list)


class Inbox:
    """The prompts that one decode engine waits for. page_bytes: of a block, of all ranks."""

    def __init__(self, engine: VirtualEngine, pair: Pair, page_bytes: int) -> None:
        self.engine = engine
        self._pair, self._page_bytes = pair, page_bytes
        self._waiting: deque[Sending] = deque()
        self._held: dict[int, list[list[int]]] = {}
        self._num_held = 0
        num_blocks = engine.scheduler.blocks.pool.num_blocks
        self._room = PullRoom.of(num_blocks, KVTransferConfig().max_held_fraction)

    def expect(self, request: Request, producer: VirtualEngine) -> None:
        """Take a request whose prompt was computed; its blocks there are kept from now on."""
        blocks = self.engine.scheduler.blocks
        size = blocks.block_size
        usable = (len(request.prompt_token_ids) - 1) // size * size
        tokens = np.asarray(request.prompt_token_ids[: usable + 1], dtype=np.int32)
        kept = list(producer.scheduler.blocks.match_prefix(tokens, "", request.lora).block_ids)
        for block_ids in kept:
            producer.scheduler.blocks.pool.share(block_ids)
        self._waiting.append(Sending(request, producer, kept, tokens))

    def begin(self, now: float, free_at: dict[VirtualEngine, float]) -> list[tuple[float, Sending]]:
        """Begin to send the prompts that have room; return when each has come. free_at: of each
        producer's link."""
        begun = []
        while self._waiting and self._takes(self._waiting[0]):
            sending = self._waiting.popleft()
            assert sending.plan is not None, "it has room"
            size_bytes = sending.plan.num_blocks * self._page_bytes
            begins = max(now, free_at.get(sending.producer, 0.0))
            sent_at = begins + size_bytes / self._pair.bytes_per_second
            free_at[sending.producer] = sent_at
            begun.append((sent_at + self._pair.seconds, sending))
        return begun

    def arrived(self, sending: Sending, now: float) -> None:
        """Publish the pages of a prompt, free those of its producer, and queue its request."""
        blocks, match, plan = self.engine.scheduler.blocks, sending.match, sending.plan
        assert match is not None, "it was begun"
        assert plan is not None, "it was begun"
        shared = len(match.block_ids)
        received = [
            list(enumerate(block_ids, start=first))
            for first, block_ids in zip(plan.firsts, sending.taken[shared:], strict=True)
        ]
        after = sending.tokens[match.num_blocks * blocks.block_size : -1]
        lora = sending.request.lora
        blocks.publish_received(received, after, match.num_blocks, match.last_hash, lora)
        for block_ids in sending.kept:
            sending.producer.scheduler.blocks.pool.free(block_ids)
        sending.producer.unblock(now)
        self._held[sending.request.id] = sending.taken
        self.engine.add(sending.request, now)

    def admitted(self) -> None:
        """Drop the hold on blocks of requests that have their own references now."""
        for number in [each for each in self._held if not self.engine.pipeline.is_waiting(each)]:
            for block_ids in self._held.pop(number):
                self._num_held -= len(block_ids)
                self.engine.scheduler.blocks.pool.free(block_ids)

    def make_room(self) -> bool:
        """Drop the hold on blocks of requests that wait, since nothing runs and the queue's first
        one finds no room. Returns False if none is held."""
        held, self._held = self._held, {}
        for block_ids in (each for tables in held.values() for each in tables):
            self._num_held -= len(block_ids)
            self.engine.scheduler.blocks.pool.free(block_ids)
        return bool(held)

    def _takes(self, sending: Sending) -> bool:
        """Take blocks for the pages of a prompt; False if there is no room yet."""
        blocks = self.engine.scheduler.blocks
        match = blocks.match_prefix(sending.tokens, "", sending.request.lora)
        end = (len(sending.tokens) - 1) // blocks.block_size
        plan = plan_pull(blocks, match, end)
        needed = plan.num_blocks + match.num_unheld
        if not self._room.takes(needed, num_held=self._num_held, num_free=blocks.pool.num_free):
            return False
        sending.match, sending.plan = match, plan
        for block_ids in match.block_ids:
            blocks.pool.share(block_ids)
            sending.taken.append(list(block_ids))
        sending.taken += [blocks.pool.allocate(plan.end - first) for first in plan.firsts]
        self._num_held += sum(map(len, sending.taken))
        return True
