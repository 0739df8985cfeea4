"""Two engine cores of this process, one of which computes prompts for the other.

Their side channel is a real one over loopback, perhaps through a proxy; the test turns both cores.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from atom.kv_transfer_config.values import KVRole, KVTransferConfig
from atom.model_engine.request import Request
from atom.model_engine.transfer_legs import (
    DecodeLeg,
    Leg,
    PrefillLeg,
    TicketNote,
    TransferOutcome,
)
from atom.model_engine.wire.engine_protocol import AbortBody, AddBody, FinishedRow, encode
from atom.sampling_params import SamplingParams
from tests.support.engine_core.wired_core import WiredCore
from tests.support.ranks.rank_group import RankGroup
from tests.support.waiting import wait_until

BLOCK_TOKENS = 16
_OPTIONS: dict[str, Any] = {
    "num_kv_blocks": 128, "max_num_seqs": 16, "max_model_len": 256,
    "max_num_batched_tokens": 256, "block_size": BLOCK_TOKENS,
}  # fmt: skip


def transfer_config(role: KVRole, **fields: Any) -> KVTransferConfig:
    """Any free port; every missing token counts."""
    return KVTransferConfig(**{"role": role, "port": 0, "recompute_threshold": 0, **fields})


@dataclass(frozen=True, slots=True)
class Answer:
    """outcome: None of a request that had no ticket."""

    tokens: list[int]
    end: FinishedRow
    outcome: TransferOutcome | None


class TransferPair:
    """producer, consumer: the cores. place: of the producer's channel, where the consumer looks for
    it; None for its own."""

    def __init__(
        self,
        model: Path,
        *,
        transfer: dict[str, Any] | None = None,
        ranks: tuple[RankGroup | None, RankGroup | None] = (None, None),
        apart: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        """transfer: fields of both engines' KVTransferConfig; ranks: of the producer and of the
        consumer; apart: options of the consumer alone; options: of both engines."""
        fields, options = transfer or {}, {**_OPTIONS, **options}
        self.producer, self.consumer = (
            WiredCore(
                model, ranks=own, **{**options, **more}, kv_transfer=transfer_config(role, **fields)
            )
            for role, own, more in zip(
                (KVRole.PRODUCER, KVRole.CONSUMER), ranks, ({}, apart or {}), strict=True
            )
        )
        self.place: tuple[str, int] | None = None
        self._numbers = itertools.count(1)

    def turn(self) -> None:
        for core in (self.producer, self.consumer):
            core.turn()

    def turn_until(self, condition: Callable[[], bool], what: str) -> None:
        def turned() -> bool:
            self.turn()
            return condition()

        wait_until(turned, what, poll_seconds=0.0)

    def request(
        self, prompt: Sequence[int], params: SamplingParams, leg: Leg | None = None, **fields: Any
    ) -> Request:
        most = 1 if isinstance(leg, PrefillLeg) else params.max_tokens or 16
        return Request(
            id=next(self._numbers),
            prompt_token_ids=list(prompt),
            params=params,
            max_total_tokens=len(prompt) + most,
            arrive_time=0.0,
            kv_transfer=leg,
            **fields,
        )

    def prefill(self, prompt: Sequence[int], params: SamplingParams, **fields: Any) -> TicketNote:
        """The note of a prefill leg."""
        asked = msgspec.structs.replace(params, max_tokens=1, min_tokens=0)
        request = self.request(prompt, asked, PrefillLeg(), **fields)
        self.producer.send(*encode(AddBody([request])))
        self.turn_until(
            lambda: request.id in self.producer.sockets.finished, "the prefill leg ends"
        )
        (row,) = self.producer.sockets.finished[request.id]
        assert row.ticket is not None, row
        return row.ticket

    def leg_of(self, note: TicketNote) -> DecodeLeg | None:
        """None if nothing was kept: the prompt is then computed as that of a whole request."""
        if not note.ticket:
            return None
        host, port = self.place or (note.host, note.port)
        return DecodeLeg(host, port, note.engine_id, note.ticket, note.layout, note.num_tokens)

    def begin_decode(
        self, prompt: Sequence[int], params: SamplingParams, leg: Leg | None, **fields: Any
    ) -> Request:
        request = self.request(prompt, params, leg, **fields)
        self.consumer.send(*encode(AddBody([request])))
        return request

    def finish(self, request: Request) -> Answer:
        sockets = self.consumer.sockets
        self.turn_until(lambda: request.id in sockets.finished, f"request {request.id} ends")
        (row,) = sockets.finished[request.id]
        return Answer(sockets.tokens.get(request.id, []), row, sockets.transfers.get(request.id))

    def decode(
        self, prompt: Sequence[int], params: SamplingParams, note: TicketNote, **fields: Any
    ) -> Answer:
        """The answer of a decode leg."""
        return self.finish(self.begin_decode(prompt, params, self.leg_of(note), **fields))

    def answered_whole(
        self, prompt: Sequence[int], params: SamplingParams, core: WiredCore | None = None
    ) -> list[int]:
        """The tokens of one engine, which has nothing of the prompt cached. core: the producer, if
        it is None."""
        one = core or self.producer
        request = self.request(prompt, params, cache_salt="whole")
        one.send(*encode(AddBody([request])))
        self.turn_until(lambda: request.id in one.sockets.finished, "the whole request ends")
        return one.sockets.tokens[request.id]

    def abort(self, request: Request) -> None:
        self.consumer.send(*encode(AbortBody([request.id])))

    def held_blocks(self) -> tuple[int, int]:
        """Of the producer and of the consumer."""
        return self.producer.core.check_integrity(), self.consumer.core.check_integrity()

    def close(self) -> None:
        for core in (self.producer, self.consumer):
            core.close()
