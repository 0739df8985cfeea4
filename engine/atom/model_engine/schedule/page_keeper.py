"""PageKeeper: keeps the pages of a prefill leg when its sequence ends, for another engine."""

from __future__ import annotations

from typing import Protocol

from atom.model_engine.request import FinishReason
from atom.model_engine.sequence import Sequence
from atom.model_engine.transfer_legs import TicketNote


class PageKeeper(Protocol):
    def ended(self, sequence: Sequence, *, complete: bool) -> TicketNote | None:
        """End a prefill leg, whose blocks are still referenced; returns its ticket. complete: its
        prompt was computed."""
        ...


def ticket_of(
    keeper: PageKeeper | None, sequence: Sequence, reason: FinishReason
) -> TicketNote | None:
    """Return the ticket of a sequence that ends; None unless it is a prefill leg."""
    if keeper is None or not sequence.is_prefill_leg:
        return None
    return keeper.ended(sequence, complete=reason in (FinishReason.STOP, FinishReason.LENGTH))
