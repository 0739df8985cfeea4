"""Group: the processes that share one model, as seen by one of them.

Layers call it for sums and for the other ranks' data; the implementations choose the transport. A
model on one device has a group of one, which computes nothing.
"""

from __future__ import annotations

from typing import Protocol

import torch


class Group(Protocol):
    """Every rank makes the same calls in the same order, with tensors of the same shape; each
    returns when the others have made it, or, on a GPU, is queued to."""

    @property
    def rank(self) -> int:
        """Return this process' number, from 0."""
        ...

    @property
    def size(self) -> int:
        """Return how many processes there are."""
        ...

    @property
    def nodes(self) -> int:
        """Count the machines that the group's ranks run on."""
        ...

    def reduce(self, x: torch.Tensor) -> torch.Tensor:
        """Add up every rank's x, which may be overwritten: the same bits on each."""
        ...

    def add_and_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Add up every rank's x and the residual, all [T, H], with one kernel; return the sum's
        RMSNorm, and the sum. Return None without doing anything if no kernel supports the shapes. x
        may be parts [parts, T, H] float32 if the group takes them. May overwrite the residual."""
        ...

    def takes_parts(self, residual: torch.Tensor) -> bool:
        """Return whether `add_and_norm` takes parts for such a residual; if so, it always does."""
        ...

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        """Put every rank's x [R, n] side by side: [R, size · n], in the order of ranks."""
        ...

    def enter(self) -> None:
        """Count a collective that other code carries out, so that other ranks can see which rank is
        late."""
        ...

    def barrier(self) -> None:
        """Wait until every rank is here."""
        ...

    def close(self) -> None:
        """Leave the others, for good."""
        ...


class Alone:
    """The group of one process."""

    rank = 0
    size = 1
    nodes = 1

    def reduce(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def add_and_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> None:
        return None

    def takes_parts(self, residual: torch.Tensor) -> bool:
        return False

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def enter(self) -> None:
        pass

    def barrier(self) -> None:
        pass

    def close(self) -> None:
        pass


ALONE = Alone()
