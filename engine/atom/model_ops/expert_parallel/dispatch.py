"""Expert exchange: send tokens to the ranks that have their experts, and the results back.

There are two ways over torch.distributed, of which a step's ranks agree on one. Gathered: every
rank gets every token, padded to the same number on each, and the results are summed on their way
back. All shapes are known, so a graph can capture it, and for few tokens it needs the fewest
messages. All to all: each token goes once to each rank that has one of its experts. The ranks
exchange the counts first, so this way suits large steps and runs eagerly. Both give the same sums.
Other transports (mori_dispatch.py) are further implementations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F

from atom.collectives.expert_links import ExpertLinks
from atom.model_ops.routing import Routed


@dataclass(frozen=True, slots=True)
class Arrived:
    """Tokens of all ranks for this rank's experts: x [N, H]; routed: ids of this rank's slots, and
    ids out of range for other ranks'; tokens: the number of this rank's own; sent: the indices of
    those sent to each rank; received: rows that came from each."""

    x: torch.Tensor
    routed: Routed
    tokens: int
    sent: tuple[torch.Tensor, ...] = ()
    received: tuple[int, ...] = ()


class ExpertDispatch(Protocol):
    """Every rank calls both, in turn, for each layer with experts. slots: that each rank has."""

    def dispatch(self, x: torch.Tensor, routed: Routed, slots: int) -> Arrived:
        """Send x [T, H] with its routing, ids of slots over all ranks; return the tokens that
        arrived here."""
        ...

    def combine(self, arrived: Arrived, result: torch.Tensor) -> torch.Tensor:
        """Send back the results of this rank's experts for the arrived tokens, [N, H]; return the
        sum over all ranks for this rank's own tokens, [T, H]."""
        ...


class AllGatherDispatch:
    """Sends every token to every rank; `capacity` counts the tokens that each rank sends, padding
    included."""

    def __init__(self, links: ExpertLinks, capacity: int) -> None:
        self._links = links
        self._capacity = capacity

    def dispatch(self, x: torch.Tensor, routed: Routed, slots: int) -> Arrived:
        tokens = x.shape[0]
        packed = _packed(*_padded(x, routed, self._capacity - tokens))
        rows = self._links.gather_rows(packed)
        everyone, ids, weights = _unpacked(rows, x, routed)
        own = own_share(Routed(ids, weights), self._links.rank * slots)
        return Arrived(everyone, own, tokens)

    def combine(self, arrived: Arrived, result: torch.Tensor) -> torch.Tensor:
        return self._links.scatter_sums(result)[: arrived.tokens]


class AllToAllDispatch:
    def __init__(self, links: ExpertLinks) -> None:
        self._links = links

    def dispatch(self, x: torch.Tensor, routed: Routed, slots: int) -> Arrived:
        ranks = torch.arange(self._links.size, device=x.device)[:, None, None]
        wanted = (routed.ids // slots == ranks).any(dim=2)  # [ranks, T]
        counts: list[int] = wanted.sum(dim=1).tolist()
        received = self._links.exchange_counts(counts)
        tokens = wanted.nonzero()[:, 1]
        packed = _packed(x[tokens], routed.ids[tokens], routed.weights[tokens])
        rows = self._links.exchange(packed, counts, received)
        arrived, ids, weights = _unpacked(rows, x, routed)
        own = own_share(Routed(ids, weights), self._links.rank * slots)
        return Arrived(arrived, own, x.shape[0], tokens.split(counts), tuple(received))

    def combine(self, arrived: Arrived, result: torch.Tensor) -> torch.Tensor:
        counts = [len(tokens) for tokens in arrived.sent]
        back = self._links.exchange(result, arrived.received, counts).split(counts)
        shape = (arrived.tokens, result.shape[1])
        total = torch.zeros(shape, dtype=torch.float32, device=result.device)
        # Rank by rank, so that a sum does not depend on who was first.
        for tokens, part in zip(arrived.sent, back, strict=True):
            total[tokens] += part
        return total.to(result.dtype)


class DeviceDispatch(ExpertDispatch, Protocol):
    """An exchange of another library, of few tokens."""

    @property
    def most_tokens(self) -> int:
        """Return the most tokens that each rank may send."""
        ...

    def close(self) -> None:
        """Release the resources of the exchange."""
        ...


class PaddedDispatch:
    """The exchange that the ranks have agreed on for the step that runs. few: for steps of few
    tokens, instead of gathering them."""

    def __init__(self, links: ExpertLinks, few: DeviceDispatch | None = None) -> None:
        self.links = links
        self._few = few
        self._all_to_all = AllToAllDispatch(links)
        self._now: ExpertDispatch = self._all_to_all

    def set_dp_padding(self, capacity: int | None) -> None:
        """Exchange `capacity` tokens per rank from now on, padding included; None to exchange only
        the actual tokens."""
        if capacity is None:
            self._now = self._all_to_all
        elif self._few is not None and capacity <= self._few.most_tokens:
            self._now = self._few
        else:
            self._now = AllGatherDispatch(self.links, capacity)

    def close(self) -> None:
        if self._few is not None:
            self._few.close()

    def dispatch(self, x: torch.Tensor, routed: Routed, slots: int) -> Arrived:
        return self._now.dispatch(x, routed, slots)

    def combine(self, arrived: Arrived, result: torch.Tensor) -> torch.Tensor:
        return self._now.combine(arrived, result)


def own_share(routed: Routed, first: int) -> Routed:
    """Convert ids over all ranks to this rank's slots, which begin at `first`."""
    ids = routed.ids - first if first else routed.ids
    return Routed(ids, routed.weights, is_partial=True)


def _padded(
    x: torch.Tensor, routed: Routed, rows: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Pad with `rows` tokens that choose no expert."""
    if not rows:
        return x, routed.ids, routed.weights
    below = (0, 0, 0, rows)
    return F.pad(x, below), F.pad(routed.ids, below, value=-1), F.pad(routed.weights, below)


def _packed(x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Pack each token into one row of bytes, so that a dispatch is one message."""
    parts = (x, ids, weights)
    return torch.cat([part.contiguous().view(torch.uint8) for part in parts], dim=1)


def _unpacked(
    rows: torch.Tensor, x: torch.Tensor, routed: Routed
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Unpack tokens, ids and weights of rows that were packed like x and routed."""
    parts = (x, routed.ids, routed.weights)
    widths = [part.shape[1] * part.element_size() for part in parts]
    tokens, ids, weights = (
        piece.contiguous().view(part.dtype)
        for piece, part in zip(rows.split(widths, dim=1), parts, strict=True)
    )
    return tokens, ids, weights
