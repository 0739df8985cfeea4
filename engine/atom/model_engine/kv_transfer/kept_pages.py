"""KeptPages: the producer's side — blocks that stay after a prefill leg, and their pages.

At the end of a prefill leg the prefix cache has the prompt's whole blocks; those are referenced
once more under a ticket, so no request can evict them. Pages are read between steps, a few blocks
at a time, and only as fast as the consumer takes them. Belongs to the engine core's thread.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from atom.model_engine.kv_transfer.cache_pages import CachePages
from atom.model_engine.kv_transfer.channel import Channel
from atom.model_engine.kv_transfer.frames import HASH_BYTES, Gone, Have, Page, Want
from atom.model_engine.kv_transfer.prefix_proof import prefix_hashes
from atom.model_engine.kv_transfer.tickets import GoneError, TicketTable
from atom.model_engine.request import Request
from atom.model_engine.sequence import Sequence
from atom.model_engine.transfer_legs import TicketNote

_PIECE_BYTES = 8 * 2**20  # that one turn reads at most
_LOOK_SECONDS = 0.005  # between looks at how much a consumer has read
_MOST_UNSENT_BYTES = 64 * 2**20  # that wait for one consumer


@dataclass(frozen=True, slots=True)
class KeptPrefix:
    """Hold the whole blocks of a prompt. tokens: [blocks · block_size], int32; block_ids: of each
    group, the last ones of the prefix that a later token sees."""

    tokens: NDArray[np.int32]
    salt: str
    num_blocks: int
    block_ids: list[list[int]]


@dataclass(slots=True)
class _Sending:
    """A want that is being served. pages: (number, group, block) still to send."""

    link: int
    ticket: str
    pages: deque[tuple[int, int, int]]
    missing: list[int] = field(default_factory=list)


class KeptPages:
    """Keep and send the pages of prefill legs. sent_bytes_total: of pages."""

    def __init__(
        self,
        cache: CachePages,
        channel: Channel,
        tickets: TicketTable[KeptPrefix],
        note: TicketNote,
        clock: Callable[[], float],
    ) -> None:
        """note: of a leg that keeps nothing here; a ticket's differs in its own facts."""
        self._blocks, self._pages = cache.blocks, cache.access
        self._channel = channel
        self._note = note
        self._clock = clock
        self._sendings: list[_Sending] = []
        self.tickets = tickets
        self.sent_bytes_total = 0

    # ---- prefill legs -------------------------------------------------------------------------

    def admit(self, request: Request) -> bool:
        """Reserve room for the ticket of a prefill leg; False if tickets take too much already. A
        leg that could never have a ticket, and one with an adapter, is computed without."""
        needed = self._blocks.num_needed(len(request.prompt_token_ids))
        if request.lora is not None or not self.tickets.could_ever_hold(needed):
            return True
        return self.tickets.promise(request.id, needed)

    def ended(self, sequence: Sequence, *, complete: bool) -> TicketNote | None:
        """End a prefill leg, whose blocks are still referenced; returns its ticket, or a note that
        nothing is kept. complete: its prompt was computed."""
        promised = self.tickets.withdraw(sequence.id)
        if not complete:
            return None
        prompt = sequence.token_ids[: sequence.num_prompt_tokens]
        match = self._blocks.match_prefix(prompt, sequence.cache_salt, sequence.lora)
        if not promised or not match.num_blocks:
            return self._note
        for block_ids in match.block_ids:
            self._blocks.pool.share(block_ids)
        size = match.num_blocks * self._blocks.block_size
        kept = KeptPrefix(
            prompt[:size].copy(), sequence.cache_salt, match.num_blocks, match.block_ids
        )
        name = secrets.token_hex(16)
        self.tickets.grant(name, kept, sum(map(len, match.block_ids)), self._clock())
        return msgspec.structs.replace(
            self._note, ticket=name, num_tokens=size, block_ids=match.block_ids
        )

    # ---- consumers ----------------------------------------------------------------------------

    def wanted(self, link: int, want: Want, now: float) -> None:
        """Begin to send the pages of a ticket."""
        try:
            kept = self.tickets.read(want.ticket, now)
        except GoneError as error:
            self._channel.answer(link, Gone(want.ticket, str(error)))
            return
        hashes = prefix_hashes(kept.tokens, self._blocks.block_size, kept.salt, self._note.layout)
        sending = _Sending(link, want.ticket, deque())
        number = 0
        for run in want.runs:
            for row in range(len(run)):
                proof = run.hashes[row * HASH_BYTES : (row + 1) * HASH_BYTES]
                block = _block_of(kept, run.group, run.first + row, proof, hashes)
                if block is None:
                    sending.missing.append(number)
                else:
                    sending.pages.append((number, run.group, block))
                number += 1
        self._sendings.append(sending)

    def renewed(self, link: int, names: list[str], now: float) -> None:
        for name in self.tickets.renew(names, now):
            self._channel.answer(link, Gone(name, "expired"))

    def done(self, name: str) -> None:
        """Free the blocks of a ticket that its consumer needs no more."""
        self._free(self.tickets.end(name))

    def link_lost(self, link: int) -> None:
        """Free the tickets that this consumer was reading, since a ticket is read once."""
        for sending in [each for each in self._sendings if each.link == link]:
            self.done(sending.ticket)
        self._sendings = [each for each in self._sendings if each.link != link]

    def void(self) -> None:
        """End every ticket, since the cache is emptied."""
        self._free(self.tickets.void())

    # ---- turns --------------------------------------------------------------------------------

    @property
    def seconds_to_send(self) -> float | None:
        """Return when to send the next pages: at once, or soon if consumers have not read enough of
        the earlier ones; None if there is nothing to send."""
        if not self._sendings:
            return None
        return 0.0 if any(map(self._takes_more, self._sendings)) else _LOOK_SECONDS

    def turn(self, now: float) -> None:
        """Free the expired tickets and send the next pages."""
        self._free(self.tickets.expire(now))
        for sending in self._sendings:
            if not self.tickets.holds(sending.ticket):
                self._channel.answer(sending.link, Gone(sending.ticket, "ended"))
        self._sendings = [each for each in self._sendings if self.tickets.holds(each.ticket)]
        for sending in self._sendings:
            if self._takes_more(sending):
                self._send_piece(sending)
        finished = [each for each in self._sendings if not each.pages]
        for sending in finished:
            self._channel.answer(sending.link, Have(sending.ticket, sending.missing))
            self._sendings.remove(sending)

    def _takes_more(self, sending: _Sending) -> bool:
        return self._channel.unsent_bytes(sending.link) < _MOST_UNSENT_BYTES

    def _send_piece(self, sending: _Sending) -> None:
        """Read and send the next pages of one group."""
        if not sending.pages:
            return
        group = sending.pages[0][1]
        most = max(1, _PIECE_BYTES // self._pages.page_bytes(group))
        piece: list[tuple[int, int, int]] = []
        while sending.pages and sending.pages[0][1] == group and len(piece) < most:
            piece.append(sending.pages.popleft())
        pages = self._pages.read(group, [block for _, _, block in piece])
        for (number, _, _), page in zip(piece, pages, strict=True):
            check = xxhash.xxh3_64_digest(page)
            self._channel.answer(sending.link, Page(sending.ticket, number, len(page), check), page)
            self.sent_bytes_total += len(page)

    def _free(self, kept: list[KeptPrefix]) -> None:
        for prefix in kept:
            for block_ids in prefix.block_ids:
                self._blocks.pool.free(block_ids)


def _block_of(kept: KeptPrefix, group: int, index: int, proof: bytes, hashes: bytes) -> int | None:
    """Return the block of a group at an index of the prompt; None if none is kept there, or if the
    consumer's tokens up to its end are others."""
    if group >= len(kept.block_ids) or index >= kept.num_blocks:
        return None
    if hashes[index * HASH_BYTES : (index + 1) * HASH_BYTES] != proof:
        return None
    at = index - (kept.num_blocks - len(kept.block_ids[group]))
    return kept.block_ids[group][at] if at >= 0 else None
