"""KeptPages: the producer's side — blocks that stay after a prefill leg, and their pages.

At the end of a prefill leg the prefix cache has the prompt's whole blocks; those are referenced
once more under a ticket, so no request can evict them. Pages are read between steps, a few blocks
at a time, and only as fast as the consumer takes them. Belongs to the engine core's thread.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import Enum, auto

import msgspec
import numpy as np
from numpy.typing import NDArray

from atom.model_engine.kv_transfer.cache_pages import CachePages
from atom.model_engine.kv_transfer.channel import Channel
from atom.model_engine.kv_transfer.frames import HASH_BYTES, Gone, Have, Want
from atom.model_engine.kv_transfer.prefix_proof import prefix_hashes
from atom.model_engine.kv_transfer.tickets import GoneError, TicketTable
from atom.model_engine.request import Request
from atom.model_engine.sequence import Sequence
from atom.model_engine.transfer_legs import TicketNote

logger = logging.getLogger(__name__)

_PIECE_BYTES = 8 * 2**20  # that one turn reads at most
_LOOK_SECONDS = 0.005  # between looks at how much a consumer has read
_READER_SECONDS = 0.001  # the same, of the reader's thread
_MOST_UNSENT_BYTES = 64 * 2**20  # that wait for one consumer


@dataclass(frozen=True, slots=True)
class KeptPrefix:
    """Hold the whole blocks of a prompt. tokens: [blocks · block_size], int32, and in blocks with
    images their names (Sequence.named); adapter: the digest of its files, or empty; block_ids: of
    each group, the last ones of the prefix that a later token sees; state: the checkpoint at the
    prefix's end, if layers keep states."""

    tokens: NDArray[np.int32]
    salt: str
    adapter: str
    num_blocks: int
    block_ids: list[list[int]]
    state: int | None = None


class Progress(Enum):
    """Say how far a want is served, and by which thread: the reader's while it is READING."""

    NEW = auto()
    READING = auto()
    SENT = auto()
    FAILED = auto()
    ENDED = auto()


@dataclass(slots=True)
class _Sending:
    """A want that is being served. pages: (number, group, block) still to send."""

    link: int
    ticket: str
    pages: deque[tuple[int, int, int]]
    missing: list[int] = field(default_factory=list)
    progress: Progress = Progress.NEW


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
        self._adapter_of = cache.adapter_of
        self._channel = channel
        self._note = note
        self._clock = clock
        self._sendings: list[_Sending] = []
        self._thread: ThreadPoolExecutor | None = None
        if cache.access.copies_beside_steps:
            self._thread = ThreadPoolExecutor(1, "kv-page-reader")
        self.tickets = tickets
        self.sent_bytes_total = 0

    # ---- prefill legs -------------------------------------------------------------------------

    def admit(self, request: Request) -> bool:
        """Reserve room for the ticket of a prefill leg; False if tickets take too much already. A
        leg that could never have a ticket, and one with an adapter whose files are not known, is
        computed without."""
        needed = self._blocks.num_needed(len(request.prompt_token_ids))
        if self._adapter_of(request.lora) is None or not self.tickets.could_ever_hold(needed):
            return True
        return self.tickets.promise(request.id, needed)

    def ended(self, sequence: Sequence, *, complete: bool) -> TicketNote | None:
        """End a prefill leg, whose blocks are still referenced; returns its ticket, or a note that
        nothing is kept. complete: its prompt was computed."""
        promised = self.tickets.withdraw(sequence.id)
        if not complete:
            return None
        taken: list[KeptPrefix] = []
        try:
            return self._grant(sequence, taken) if promised else self._note
        except Exception:  # of this one leg, whose prompt another engine computes then
            logger.exception("kv transfer: the pages of a prefill leg could not be kept")
            self._free(taken)
            return self._note

    def _grant(self, sequence: Sequence, taken: list[KeptPrefix]) -> TicketNote:
        """Keep the blocks of a prompt under a ticket. taken: gets the prefix, with the blocks of
        each group that were referenced so far."""
        given = sequence.token_ids[: sequence.num_prompt_tokens]
        prompt = sequence.named(given, 0, self._blocks.block_size)
        match = self._blocks.match_prefix(prompt, sequence.cache_salt, sequence.lora)
        adapter = self._adapter_of(sequence.lora)
        if not match.num_blocks or adapter is None:
            return self._note
        size, checkpoints = match.num_blocks * self._blocks.block_size, self._blocks.checkpoints
        tokens, salt = prompt[:size].copy(), sequence.cache_salt
        state = None if checkpoints is None else checkpoints.pin(match.block_ids[0][-1])
        kept = KeptPrefix(tokens, salt, adapter, match.num_blocks, [], state)
        taken.append(kept)
        for block_ids in match.block_ids:
            self._blocks.pool.share(block_ids)
            kept.block_ids.append(block_ids)
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
            self._sendings.append(self._sending(link, want, kept))
        except GoneError as error:
            self._tell_gone(link, want.ticket, str(error))
        except Exception:
            logger.exception("kv transfer: the pages of a ticket could not be found")
            self._fail(link, want.ticket)

    def _sending(self, link: int, want: Want, kept: KeptPrefix) -> _Sending:
        """Plan the pages to send."""
        size, layout = self._blocks.block_size, self._note.layout
        hashes = prefix_hashes(kept.tokens, size, kept.salt, layout, kept.adapter)
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
        return sending

    def _fail(self, link: int, name: str) -> None:
        """End a ticket whose pages cannot be sent, and tell its consumer."""
        self.done(name)
        self._tell_gone(link, name, "fault")

    def _tell_gone(self, link: int, name: str, reason: str) -> None:
        """Tell a consumer that a ticket has ended; without the news it waits for its deadline."""
        try:
            self._channel.answer(link, Gone(name, reason))
        except Exception:
            logger.exception("kv transfer: the end of ticket %s could not be reported", name)

    def renewed(self, link: int, names: list[str], now: float) -> None:
        for name in self.tickets.renew(names, now):
            self._tell_gone(link, name, "expired")

    def done(self, name: str) -> None:
        """Free the blocks of a ticket that its consumer needs no more."""
        self._free(self.tickets.end(name))

    def link_lost(self, link: int) -> None:
        """Free the tickets that this consumer was reading, since a ticket is read once."""
        for sending in [each for each in self._sendings if each.link == link]:
            self.done(sending.ticket)
            sending.progress = Progress.ENDED
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
        if self._thread is not None:
            waits = all(each.progress is Progress.READING for each in self._sendings)
            return _LOOK_SECONDS if waits else 0.0
        return 0.0 if any(map(self._takes_more, self._sendings)) else _LOOK_SECONDS

    def turn(self, now: float) -> None:
        """Free the expired tickets and send the next pages."""
        self._free(self.tickets.expire(now))
        for sending in self._sendings:
            if not self.tickets.holds(sending.ticket):
                self._tell_gone(sending.link, sending.ticket, "ended")
                sending.progress = Progress.ENDED
        self._sendings = [each for each in self._sendings if self.tickets.holds(each.ticket)]
        for sending in self._sendings:
            try:
                self._advance(sending)
            except Exception:
                logger.exception("kv transfer: the pages of a ticket could not be sent")
                sending.progress = Progress.FAILED
            if sending.progress is Progress.FAILED:
                sending.progress = Progress.ENDED
                self._fail(sending.link, sending.ticket)
        self._sendings = [each for each in self._sendings if each.progress is not Progress.ENDED]

    def _advance(self, sending: _Sending) -> None:
        """Send the next pages of a want, and behind the last one its end."""
        if self._thread is None:
            if self._takes_more(sending):
                self._send_piece(sending)
            if not sending.pages:
                sending.progress = Progress.SENT
        elif sending.progress is Progress.NEW:
            sending.progress = Progress.READING
            self._thread.submit(self._read_on, sending)
        if sending.progress is Progress.SENT:
            sending.progress = Progress.ENDED
            self._channel.answer(sending.link, Have(sending.ticket, sending.missing))

    def _read_on(self, sending: _Sending) -> None:
        """Send the next pages, on the reader's thread; wants take turns. Blocks may be freed
        meanwhile: their consumer has been told before they are filled again, and drops the page."""
        assert self._thread is not None
        try:
            if self._takes_more(sending):
                self._send_piece(sending)
            else:
                time.sleep(_READER_SECONDS)
        except Exception:
            logger.exception("kv transfer: the pages of a ticket could not be sent")
            sending.pages.clear()
            if sending.progress is Progress.READING:
                sending.progress = Progress.FAILED
            return
        if sending.progress is not Progress.READING:
            return
        if sending.pages:
            with contextlib.suppress(RuntimeError):  # the engine ends
                self._thread.submit(self._read_on, sending)
        else:
            sending.progress = Progress.SENT

    def close(self) -> None:
        """Stop the reader's thread."""
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)

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
        blocks = [block for _, _, block in piece]
        device = self._pages.device_memory
        by_device = device is not None and self._channel.reads_device(sending.link)
        pages = (device if device is not None and by_device else self._pages).read(group, blocks)
        for (number, _, _), page in zip(piece, pages, strict=True):
            self._channel.send_page(sending.link, sending.ticket, number, page)
            self.sent_bytes_total += len(page)

    def _free(self, kept: list[KeptPrefix]) -> None:
        for prefix in kept:
            if prefix.state is not None and self._blocks.checkpoints is not None:
                self._blocks.checkpoints.unpin(prefix.state)
            for block_ids in prefix.block_ids:
                self._blocks.pool.free(block_ids)


def _block_of(kept: KeptPrefix, group: int, index: int, proof: bytes, hashes: bytes) -> int | None:
    """Return the block of a group at an index of the prompt, or the checkpoint of states there;
    None if none is kept there, or if the consumer's tokens up to its end are others."""
    if group > len(kept.block_ids) or index >= kept.num_blocks:
        return None
    if hashes[index * HASH_BYTES : (index + 1) * HASH_BYTES] != proof:
        return None
    if group == len(kept.block_ids):
        return kept.state if index == kept.num_blocks - 1 else None
    at = index - (kept.num_blocks - len(kept.block_ids[group]))
    return kept.block_ids[group][at] if at >= 0 else None
