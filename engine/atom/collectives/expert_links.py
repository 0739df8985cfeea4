"""ExpertLinks: exchange tokens between ranks that share a model's experts.

The ranks of `Group` compute the same tokens; here each rank has its own tokens.
model_ops/expert_parallel/dispatch.py decides which tokens each rank sends, and to which ranks.
Every rank makes the same calls in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch


class ExpertLinks(Protocol):
    @property
    def rank(self) -> int:
        """Return this process' number, from 0."""
        ...

    @property
    def size(self) -> int:
        """Return how many processes there are."""
        ...

    def gather_rows(self, x: torch.Tensor) -> torch.Tensor:
        """Put every rank's x [R, n] one below the other, [size · R, n], in the order of ranks."""
        ...

    def scatter_sums(self, x: torch.Tensor) -> torch.Tensor:
        """Add up every rank's x [size · R, n]; of the sum the R rows of this rank."""
        ...

    def sum_counts(self, counts: torch.Tensor) -> torch.Tensor:
        """Add up every rank's counts int64, of any shape, which may be overwritten."""
        ...

    def exchange_counts(self, counts: Sequence[int]) -> list[int]:
        """Send counts[r] to rank r; return the count that each rank sent to this one."""
        ...

    def exchange(
        self, x: torch.Tensor, sent: Sequence[int], received: Sequence[int]
    ) -> torch.Tensor:
        """Send rank r the next sent[r] rows of x; the rows of every rank, received[r] of each."""
        ...
