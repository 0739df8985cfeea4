"""ExpertLinks: how ranks that share a model's experts reach each other with tokens.

Beside `Group`, whose ranks compute the same tokens: here each rank has tokens of its own. What is
sent, and to whom, is decided in model_ops/expert_parallel/dispatch.py. Every rank makes the same
calls in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch


class ExpertLinks(Protocol):
    @property
    def rank(self) -> int:
        """Tell this process' number, from 0."""
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
        """Tell rank r counts[r]; what each rank told this one."""
        ...

    def exchange(
        self, x: torch.Tensor, sent: Sequence[int], received: Sequence[int]
    ) -> torch.Tensor:
        """Send rank r the next sent[r] rows of x; the rows of every rank, received[r] of each."""
        ...
